"""GR00T's action head (arXiv:2503.14734, N1.6 and N1.7): flow matching by a transformer that looks at what a model saw.

Odd blocks attend among state and actions; of the even ones some read text tokens and the others pictures. The keys and
values of all blocks that read the same tokens are one product over these tokens, and no token is projected that its
block does not look at. Actions are reached from noise forwards: time 0 is noise, and the velocity is `actions - noise`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.engine.base import LossTerms
from loong_vla.families.groot.config import GrootHeadConfig
from loong_vla.families.groot.embodiments import ActionEncoder, EmbodimentPerceptron
from loong_vla.families.groot.tokens import GatheredTokens
from loong_vla.families.pi.stream import attend

TIME_CHANNELS = 256


@dataclass(frozen=True)
class Seen:
    """What the vision-language model has made of pictures and text.

    Attributes:
        features: `[batch, tokens, vl_width]`, of its last kept layer, not normalised.
        images: which tokens are pictures.
        text: which are not, padding left out.
        there: `[batch, tokens]` bool, which tokens there are among each other; None: padding, if any, is seen as well
            (as lerobot's policy sees it, so that there a sample's actions depend on the lengths of others' prompts).
    """

    features: Tensor
    images: GatheredTokens
    text: GatheredTokens
    there: Tensor | None = None


@dataclass(frozen=True)
class Acted:
    """What is to be done, and what is learnt from.

    Attributes:
        state: `[batch, state_history * state_dim]`, normalised.
        embodiment: `[batch]` int64, among the active embodiments.
        noise: `[batch, horizon, action_dim]`.
        actions: as `noise`, normalised; unused in sampling.
        time: `[batch]` in [0, 1), 0 for pure noise; unused in sampling.
        trained: as `noise`, bool: numbers that are learnt from; unused in sampling.
        keep_state: `[batch]` bool, whose state is told; None: everybody's.
    """

    state: Tensor
    embodiment: Tensor
    noise: Tensor
    actions: Tensor | None = None
    time: Tensor | None = None
    trained: Tensor | None = None
    keep_state: Tensor | None = None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Acted:
        """The same on `device`."""
        moved = {
            each.name: value.to(device, non_blocking=non_blocking)
            for each in fields(self)
            if (value := getattr(self, each.name)) is not None
        }
        return replace(self, **moved)


class VisionLanguageBlock(nn.Module):
    """Attention among vision-language tokens, then a feed-forward, each behind a layer norm."""

    def __init__(self, heads: int, head_dim: int, dropout: float) -> None:
        super().__init__()
        width, self.heads, self.dropout = heads * head_dim, heads, dropout
        self.norm1, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, there: Tensor | None) -> Tensor:
        """Transform `[batch, tokens, width]`, of which those are attended to that are there, or all."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        return _finished(self, x, attend(q, k, v, there), self.norm3)


class ActionBlock(nn.Module):
    """A block of the diffusion transformer: adaptive norm, attention, feed-forward; no gates.

    Args:
        config: the head.
        crossing: whether it attends to what was seen (whose keys and values it is given).
    """

    def __init__(self, config: GrootHeadConfig, crossing: bool) -> None:
        super().__init__()
        width, self.heads, self.crossing, self.dropout = config.width, config.num_heads, crossing, config.dropout
        self.modulation = nn.Linear(width, 2 * width)
        self.q = nn.Linear(width, width) if crossing else None
        self.qkv = None if crossing else nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, time: Tensor, seen: tuple[Tensor, Tensor, Tensor | None] | None) -> Tensor:
        """Transform `[batch, tokens, width]`.

        Args:
            x: state and actions.
            time: `[batch, width]`.
            seen: keys and values `[batch, keys, heads, head_dim]` and which of them there are, of a crossing block.
        """
        scale, shift = self.modulation(F.silu(time))[:, None].chunk(2, dim=-1)
        normed = F.layer_norm(x, x.shape[-1:], eps=1e-5) * (1 + scale) + shift
        if self.q is not None:
            assert seen is not None
            k, v, there = seen
            q = self.q(normed).unflatten(-1, (self.heads, -1))
        else:
            assert self.qkv is not None
            q, k, v = self.qkv(normed).unflatten(-1, (3, self.heads, -1)).unbind(2)
            there = None
        return _finished(self, x, attend(q, k, v, there), lambda y: F.layer_norm(y, y.shape[-1:], eps=1e-5))


def _finished(
    block: VisionLanguageBlock | ActionBlock, x: Tensor, attended: Tensor, norm: Callable[[Tensor], Tensor]
) -> Tensor:
    """What follows attention in both kinds of block."""

    def drop(y: Tensor) -> Tensor:
        return F.dropout(y, block.dropout, block.training) if block.dropout else y

    # Twice, as the published blocks do it: within the attention module, and after it.
    x = x + drop(drop(block.out(attended.flatten(2))))
    return x + drop(block.down(drop(F.gelu(block.up(norm(x)), approximate="tanh"))))


class GrootHead(nn.Module):
    """The action head. Weights are uninitialised.

    Args:
        config: what it is.
    """

    def __init__(self, config: GrootHeadConfig) -> None:
        super().__init__()
        self.config = config
        width, banks = config.width, len(config.active)
        self.vl_norm = nn.LayerNorm(config.vl_width)
        self.vl = nn.ModuleDict(
            {"layers": nn.ModuleDict({str(n): VisionLanguageBlock(config.vl_heads, config.vl_head_dim, config.dropout)
                                      for n in range(config.vl_layers)})}
        )  # fmt: skip
        self.text_kv = nn.Linear(config.vl_width, 2 * width * len(config.text_blocks))
        self.image_kv = nn.Linear(config.vl_width, 2 * width * len(config.image_blocks))
        self.state_encoder = EmbodimentPerceptron(
            banks, config.state_dim * config.state_history, config.hidden_width, width
        )
        self.action_encoder = ActionEncoder(banks, config.action_dim, width)
        self.positions = nn.Embedding(config.max_positions, width)
        self.time1, self.time2 = nn.Linear(TIME_CHANNELS, width), nn.Linear(width, width)
        self.layers = nn.ModuleDict({str(n): ActionBlock(config, n % 2 == 0) for n in range(config.num_layers)})
        self.out_modulation = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, config.output_width)
        self.action_decoder = EmbodimentPerceptron(banks, config.output_width, config.hidden_width, config.action_dim)

    def forward(self, seen: Seen, acted: Acted) -> Tensor:
        """Velocity that it sees in noisy actions, `[batch, horizon, action_dim]`; it should be `actions - noise`."""
        assert acted.actions is not None
        assert acted.time is not None
        time = acted.time[:, None, None]
        noisy = (1 - time) * acted.noise + time * acted.actions
        whole = (acted.time * self.config.time_buckets).long()
        return self._velocity(noisy, whole, self._keys_and_values(seen), self._state(acted), acted.embodiment)

    @torch.no_grad()
    def sample(self, seen: Seen, acted: Acted, steps: int | None = None) -> Tensor:
        """Actions, `[batch, horizon, action_dim]`, from the noise by Euler steps from time 0 to 1."""
        steps = steps or self.config.inference_steps
        kept, state, actions = self._keys_and_values(seen), self._state(acted), acted.noise
        for step in range(steps):
            whole = torch.full_like(acted.embodiment, int(step / steps * self.config.time_buckets))
            actions = actions + self._velocity(actions, whole, kept, state, acted.embodiment) / steps
        return actions

    def _keys_and_values(self, seen: Seen) -> dict[int, tuple[Tensor, Tensor, Tensor | None]]:
        """What each crossing block attends to."""
        features = self.vl_norm(seen.features.to(self.vl_norm.weight.dtype))
        for block in self.vl["layers"].values():  # type: ignore[union-attr]
            features = block(features, seen.there)
        found: dict[int, tuple[Tensor, Tensor, Tensor | None]] = {}
        for tokens, product, blocks in (
            (seen.text, self.text_kv, self.config.text_blocks),
            (seen.images, self.image_kv, self.config.image_blocks),
        ):
            projected = product(tokens.take(features)).unflatten(-1, (len(blocks), 2, self.config.num_heads, -1))
            for place, block in enumerate(blocks):
                k, v = projected[:, :, place].unbind(2)  # [batch, keys, heads, head_dim]
                found[block] = k, v, tokens.there
        return found

    def _state(self, acted: Acted) -> Tensor:
        state = self.state_encoder(acted.state.to(self.out.weight.dtype)[:, None], acted.embodiment)
        return state if acted.keep_state is None else state * acted.keep_state[:, None, None]

    def _velocity(
        self,
        noisy: Tensor,
        whole_time: Tensor,
        kept: dict[int, tuple[Tensor, Tensor, Tensor | None]],
        state: Tensor,
        embodiment: Tensor,
    ) -> Tensor:
        dtype = self.out.weight.dtype
        actions = self.action_encoder(noisy.to(dtype), whole_time, embodiment)
        actions = actions + self.positions.weight[: actions.shape[1]]
        time = self.time2(F.silu(self.time1(cosines_first(whole_time).to(dtype))))
        x = torch.cat((state, actions), dim=1)
        for number, block in self.layers.items():
            x = block(x, time, kept.get(int(number)))
        shift, scale = self.out_modulation(F.silu(time))[:, None].chunk(2, dim=-1)
        x = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift
        velocity = self.action_decoder(self.out(x), embodiment)[:, -self.config.horizon :]
        return velocity.to(torch.promote_types(velocity.dtype, torch.float32))


def cosines_first(time: Tensor) -> Tensor:
    """Cosines, then sines of `time * 10000^(-i / (half - 1))`, `[batch, 256]` float32."""
    half = TIME_CHANNELS // 2
    exponent = -math.log(10000) * torch.arange(half, dtype=torch.float32, device=time.device)
    angles = time.float()[:, None] * (exponent / (half - 1)).exp()
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def groot_loss(head: nn.Module, seen: Seen, acted: Acted) -> LossTerms:
    """Squared error of the velocity, summed over the numbers that are trained."""
    assert acted.actions is not None
    assert acted.trained is not None
    velocity = head(seen, acted)
    error = (velocity - (acted.actions - acted.noise).to(velocity.dtype)).square()
    return LossTerms((error * acted.trained).sum(), acted.trained.sum())
