"""Pi0 (https://arxiv.org/abs/2410.24164) and Pi0.5 (https://arxiv.org/abs/2504.16054): actions by flow matching.

Two streams of Gemma layers run side by side: the prefix (pictures and prompt) and the suffix (actions, and Pi0's
state).
The suffix sees the prefix, never the reverse, so attention is two calls: prefix among itself, and suffix over both.
Nothing that no output depends on is computed: of the prefix's last layer that is all but keys and values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.nn.decoder_config import RotaryConfig
from loong_core.nn.rotary import Rotary
from loong_vla.families.pi.batch import PiBatch
from loong_vla.families.pi.config import PiConfig
from loong_vla.families.pi.stream import KeysAndValues, StreamLayer, attend, make_norm
from loong_vlm.towers.siglip import SiglipConfig, SiglipTower

ROTARY_THETA = 1e4

KeyValues = tuple[Tensor, Tensor]
"""Keys and values of a layer's prefix, `[batch, tokens, kv_heads, head_dim]`."""


class PiLayer(nn.Module):
    """One layer of both streams.

    Args:
        config: the policy.
        last: whether no layer follows.
    """

    def __init__(self, config: PiConfig, last: bool) -> None:
        super().__init__()
        language, expert = config.sizes.language, config.sizes.expert
        self.lone_tokens = 0 if config.state_in_prompt else 1
        self.prefix = KeysAndValues(language) if last else StreamLayer(language)
        self.expert = StreamLayer(expert, conditioned=config.kind == "pi05")

    def forward(
        self,
        prefix: Tensor | None,
        suffix: Tensor | None,
        condition: Tensor | None,
        prefix_angles: Tensor | None,
        suffix_angles: Tensor | None,
        mask: Tensor | None,
        kept: KeyValues | None = None,
    ) -> tuple[Tensor | None, Tensor | None, KeyValues]:
        """Run both streams, or one of them.

        Args:
            prefix: `[batch, prefix, width]`, or None where its keys and values are given as `kept`.
            suffix: `[batch, suffix, expert width]`, or None where only the prefix is wanted.
            condition: `[batch, expert width]` of Pi0.5.
            prefix_angles, suffix_angles: for `rotate`.
            mask: `[batch, prefix]` bool; None: the whole prefix is there.
            kept: keys and values of the prefix, from an earlier call.

        Returns:
            prefix and suffix after this layer (None after the last one's prefix), and the prefix's keys and values.
        """
        if kept is None:
            assert prefix is not None
            assert prefix_angles is not None
            prefix, kept = self._run_prefix(prefix, prefix_angles, mask)
        if suffix is not None:
            assert suffix_angles is not None
            q, k, v, gate = self.expert.before(suffix, condition, suffix_angles)
            attended = self._attend(q, torch.cat((kept[0], k), 1), torch.cat((kept[1], v), 1), mask)
            suffix = self.expert.after(suffix, attended, gate, condition)
        return prefix, suffix, kept

    def _run_prefix(self, prefix: Tensor, angles: Tensor, mask: Tensor | None) -> tuple[Tensor | None, KeyValues]:
        if isinstance(self.prefix, KeysAndValues):
            return None, self.prefix(prefix, angles)
        q, k, v, gate = self.prefix.before(prefix, None, angles)
        return self.prefix.after(prefix, attend(q, k, v, mask), gate, None), (k, v)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The suffix's attention; Pi0's state, its first token, does not see the actions after it."""
        suffix = q.shape[1]
        if mask is not None:
            mask = F.pad(mask, (0, suffix), value=True)
        lone = self.lone_tokens
        if not lone:
            return attend(q, k, v, mask)
        hidden = suffix - lone
        seen = None if mask is None else mask[:, :-hidden]
        alone = attend(q[:, :lone], k[:, :-hidden], v[:, :-hidden], seen)
        return torch.cat((alone, attend(q[:, lone:], k, v, mask)), dim=1)


class PiPolicy(nn.Module):
    """A policy. Weights are uninitialised: draw them (`initialise_pi`) or load them.

    Args:
        config: what it is.
    """

    def __init__(self, config: PiConfig) -> None:
        super().__init__()
        self.config = config
        sizes, vision = config.sizes, config.sizes.vision
        width, expert = sizes.language.width, sizes.expert.width
        self.vision = SiglipTower(
            SiglipConfig(
                vision.hidden_size,
                vision.intermediate_size,
                vision.num_layers,
                vision.num_heads,
                config.image_size,
                vision.patch_size,
            )
        )
        self.projector = nn.Linear(vision.hidden_size, width)
        self.embedding = nn.Embedding(sizes.vocab_size, width)
        depth = sizes.language.depth
        self.layers = nn.ModuleDict({str(number): PiLayer(config, number == depth - 1) for number in range(depth)})
        self.norm = make_norm(expert, conditioned=config.kind == "pi05")
        self.action_in = nn.Linear(config.max_action_dim, expert)
        self.action_out = nn.Linear(expert, config.max_action_dim)
        self.time_in = nn.Linear(expert if config.state_in_prompt else 2 * expert, expert)
        self.time_out = nn.Linear(expert, expert)
        self.state_in = None if config.state_in_prompt else nn.Linear(config.max_state_dim, expert)
        self._rotary = Rotary(RotaryConfig(ROTARY_THETA, sizes.language.head_dim))

    def forward(self, batch: PiBatch) -> Tensor:
        """Velocity that the policy sees in the batch's noisy actions.

        Args:
            batch: images are floats in [-1, 1] at the policy's size.

        Returns:
            `[batch, chunk, max_action_dim]`, float32 or wider; what it should be is `noise - actions`.
        """
        time = batch.time[:, None, None]
        noisy = time * batch.noise + (1 - time) * batch.actions
        prefix, mask = self._embed_prefix(batch)
        suffix, condition = self._embed_suffix(batch.state, noisy, batch.time)
        prefix_angles, suffix_angles = self._angles(mask, prefix, suffix.shape[1])
        stream: Tensor | None = prefix
        for layer in self.layers.values():
            stream, suffix, _ = layer(stream, suffix, condition, prefix_angles, suffix_angles, mask)
        return self._velocity(suffix, condition)

    @torch.no_grad()
    def sample(self, batch: PiBatch, steps: int | None = None) -> Tensor:
        """Actions, `[batch, chunk, max_action_dim]`, from the batch's noise by Euler steps from time 1 to 0.

        The prefix is run once; `actions` and `time` of the batch are not looked at.
        """
        steps = steps or self.config.num_inference_steps
        prefix, mask = self._embed_prefix(batch)
        suffix_length = self.config.chunk_size + (self.state_in is not None)
        prefix_angles, suffix_angles = self._angles(mask, prefix, suffix_length)
        kept = list(self._run_prefix(prefix, prefix_angles, mask))
        actions = batch.noise
        for step in range(steps):
            time = torch.full_like(actions[:, 0, 0], 1.0 - step / steps)
            suffix, condition = self._embed_suffix(batch.state, actions, time)
            for layer, key_values in zip(self.layers.values(), kept, strict=True):
                _, suffix, _ = layer(None, suffix, condition, None, suffix_angles, mask, key_values)
            actions = actions - self._velocity(suffix, condition) / steps
        return actions

    def _run_prefix(self, prefix: Tensor, angles: Tensor, mask: Tensor | None) -> Iterator[KeyValues]:
        stream: Tensor | None = prefix
        for layer in self.layers.values():
            stream, _, kept = layer(stream, None, None, angles, None, mask)
            yield kept

    def _embed_prefix(self, batch: PiBatch) -> tuple[Tensor, Tensor | None]:
        """Pictures, then prompt: `[batch, tokens, width]`, and which of them there are."""
        weight = self.embedding.weight
        size, cameras = batch.images.shape[:2]
        seen = self.projector(self.vision(batch.images.to(weight.dtype).flatten(0, 1)))
        seen = seen.unflatten(0, (size, cameras)).flatten(1, 2)  # [batch, cameras * patches, width]
        scale = torch.tensor(weight.shape[1] ** 0.5, dtype=torch.float32).to(weight.dtype).item()
        prefix = torch.cat((seen, self.embedding(batch.tokens) * scale), dim=1)
        if batch.image_mask is None and batch.token_mask is None:
            return prefix, None
        patches = seen.shape[1] // cameras
        images = _all_there(batch.image_mask, (size, cameras), prefix).repeat_interleave(patches, dim=1)
        return prefix, torch.cat((images, _all_there(batch.token_mask, tuple(batch.tokens.shape), prefix)), dim=1)

    def _embed_suffix(self, state: Tensor | None, noisy: Tensor, time: Tensor) -> tuple[Tensor, Tensor | None]:
        """State (Pi0) and noisy actions, `[batch, tokens, expert width]`, and the condition (Pi0.5)."""
        dtype = self.action_in.weight.dtype
        actions = self.action_in(noisy.to(dtype))
        told = time_embedding(time, actions.shape[-1], self.config.min_period, self.config.max_period).to(dtype)
        if self.state_in is None:
            return actions, F.silu(self.time_out(F.silu(self.time_in(told))))
        assert state is not None
        joined = torch.cat((actions, told[:, None].expand_as(actions)), dim=-1)
        actions = self.time_out(F.silu(self.time_in(joined)))
        return torch.cat((self.state_in(state.to(dtype))[:, None], actions), dim=1), None

    def _velocity(self, suffix: Tensor, condition: Tensor | None) -> Tensor:
        normed, _ = self.norm(suffix[:, -self.config.chunk_size :], condition)
        velocity = self.action_out(normed)
        return velocity.to(torch.promote_types(velocity.dtype, torch.float32))

    def _angles(self, mask: Tensor | None, prefix: Tensor, suffix_length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of prefix and suffix; what is not there takes up no position."""
        tokens = prefix.shape[1]
        ahead = torch.arange(suffix_length, device=prefix.device)
        if mask is None:
            positions = torch.arange(tokens + suffix_length, device=prefix.device)[None]
        else:
            own = mask.long().cumsum(1)
            positions = torch.cat(((own - 1).clamp(min=0), own[:, -1:] + ahead), dim=1)
        tables = self._rotary.tables(positions.flatten(), prefix.dtype)
        angles = torch.stack(tables).unflatten(1, positions.shape)[:, :, :, None]
        return angles[:, :, :tokens], angles[:, :, tokens:]


def time_embedding(time: Tensor, width: int, min_period: float, max_period: float) -> Tensor:
    """Sines, then cosines of time at `width / 2` periods in geometric series, `[batch, width]` float64."""
    exponents = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=time.device)
    periods = min_period * (max_period / min_period) ** exponents
    angles = (2 * math.pi / periods) * time[:, None].double()
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def _all_there(mask: Tensor | None, shape: tuple[int, ...], like: Tensor) -> Tensor:
    return mask if mask is not None else torch.ones(shape, dtype=torch.bool, device=like.device)
