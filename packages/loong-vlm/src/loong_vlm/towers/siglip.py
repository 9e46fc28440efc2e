"""SigLIP's image tower (https://arxiv.org/abs/2303.15343): a vision transformer over square patches, without pooling.

Every image has the same size, so a batch is dense: `[images, patches, hidden]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.checkpoint.weight_map import Rule, Span
from loong_kernels import attention


@dataclass(frozen=True)
class SiglipConfig:
    """Sizes of the tower; the defaults are those of So400m/14 at 224 pixels.

    Attributes:
        hidden_size: width.
        intermediate_size: inner width of the feed-forward.
        num_layers: transformer layers.
        num_heads: attention heads, a divisor of the width.
        image_size: height and width of an image, in pixels.
        patch_size: height and width of a patch, a divisor of `image_size`.
        norm_eps: of the layer norms.
    """

    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_layers: int = 27
    num_heads: int = 16
    image_size: int = 224
    patch_size: int = 14
    norm_eps: float = 1e-6

    @property
    def patches(self) -> int:
        """Patches of an image, which are the tokens that come out."""
        return (self.image_size // self.patch_size) ** 2

    def matmul_parameters(self) -> int:
        """Parameters that each patch is multiplied with, embedding of patches included."""
        layer = 4 * self.hidden_size**2 + 2 * self.hidden_size * self.intermediate_size
        return self.num_layers * layer + 3 * self.patch_size**2 * self.hidden_size


class SiglipLayer(nn.Module):
    """Attention over all patches of an image, then a feed-forward, each behind a layer norm."""

    def __init__(self, config: SiglipConfig) -> None:
        super().__init__()
        width, self.num_heads = config.hidden_size, config.num_heads
        self.norm1 = nn.LayerNorm(width, eps=config.norm_eps)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=config.norm_eps)
        self.up = nn.Linear(width, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, width)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `[images, patches, hidden]`."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.unbind(2)  # [images, patches, heads, head_dim]
        x = x + self.out(attention(q, k, v, causal=False).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class SiglipTower(nn.Module):
    """Pixels to one vector a patch. Weights are uninitialised.

    Args:
        config: sizes.
    """

    def __init__(self, config: SiglipConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = nn.Conv2d(3, config.hidden_size, config.patch_size, config.patch_size)
        self.position_embedding = nn.Embedding(config.patches, config.hidden_size)
        self.layers = nn.ModuleDict({str(number): SiglipLayer(config) for number in range(config.num_layers)})
        self.post_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)

    def forward(self, images: Tensor) -> Tensor:
        """`[images, 3, size, size]` in [-1, 1] to `[images, patches, hidden]`."""
        # A convolution whose stride is its kernel is a matrix product over patches, which GEMMs do faster.
        size = self.config.patch_size
        return self.encode(F.pixel_unshuffle(images, size).flatten(2).transpose(1, 2))

    def encode(self, patches: Tensor) -> Tensor:
        """`[images, patches, 3 * patch_size * patch_size]` in [-1, 1] to `[images, patches, hidden]`."""
        kernel = self.patch_embedding.weight.flatten(1)
        x = F.linear(patches, kernel, self.patch_embedding.bias) + self.position_embedding.weight
        for layer in self.layers.values():
            x = layer(x)
        return self.post_norm(x)


def siglip_rules(config: SiglipConfig, ours: str, theirs: str) -> Iterator[Rule]:
    """Rules of a weight map for a tower called `ours` here, and `theirs` in files written by transformers.

    Args:
        config: sizes.
        ours: prefix of our parameters, such as `vision.`.
        theirs: prefix of theirs, such as `vision_tower.vision_model.`.
    """
    width, inner, size = config.hidden_size, config.intermediate_size, config.patch_size
    layers = range(config.num_layers)

    def vector_and_matrix(name: str, spans: list[str], rows: int, columns: int) -> Iterator[Rule]:
        prefix = f"{theirs}encoder.layers.{{layer}}."
        yield Rule(f"{name}.weight", *(Span(f"{prefix}{s}.weight", (rows, columns)) for s in spans), layers=layers)
        yield Rule(f"{name}.bias", *(Span(f"{prefix}{s}.bias", (rows,)) for s in spans), layers=layers)

    def norm(name: str, span: str, of: range | None) -> Iterator[Rule]:
        for part in ("weight", "bias"):
            yield Rule(f"{ours}{name}.{part}", Span(f"{theirs}{span}.{part}", (width,)), layers=of)

    embeddings = f"{theirs}embeddings."
    yield Rule(f"{ours}patch_embedding.weight", Span(f"{embeddings}patch_embedding.weight", (width, 3, size, size)))
    yield Rule(f"{ours}patch_embedding.bias", Span(f"{embeddings}patch_embedding.bias", (width,)))
    yield Rule(
        f"{ours}position_embedding.weight", Span(f"{embeddings}position_embedding.weight", (config.patches, width))
    )
    layer = f"{ours}layers.{{layer}}."
    attention_names = [f"self_attn.{name}_proj" for name in ("q", "k", "v")]
    yield from vector_and_matrix(f"{layer}qkv", attention_names, width, width)
    yield from vector_and_matrix(f"{layer}out", ["self_attn.out_proj"], width, width)
    yield from vector_and_matrix(f"{layer}up", ["mlp.fc1"], inner, width)
    yield from vector_and_matrix(f"{layer}down", ["mlp.fc2"], width, inner)
    yield from norm("layers.{layer}.norm1", "encoder.layers.{layer}.layer_norm1", layers)
    yield from norm("layers.{layer}.norm2", "encoder.layers.{layer}.layer_norm2", layers)
    yield from norm("post_norm", "post_layernorm", None)
