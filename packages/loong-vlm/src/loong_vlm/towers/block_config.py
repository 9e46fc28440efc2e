"""The hyperparameters of a vision tower's blocks, as plain data; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Activation = Literal["gelu", "gelu_pytorch_tanh", "quick_gelu", "silu"]
ACTIVATION_NAMES: tuple[Activation, ...] = ("gelu", "gelu_pytorch_tanh", "quick_gelu", "silu")


@dataclass(frozen=True)
class VisionBlockConfig:
    """A pre-norm block: attention without a mask within segments of patches, then a feed-forward.

    Attributes:
        width: of the residual stream.
        num_heads: attention heads, each `width / num_heads` wide.
        intermediate_size: width between up and down.
        activation: of the feed-forward.
        gated: whether the feed-forward is `down(act(gate(x)) * up(x))` (then with `silu`) or `down(act(up(x)))`.
        norm: RMSNorm or layer normalisation.
        norm_eps: its epsilon.
        qkv_bias: whether queries, keys and values have a bias; every other matrix has one.
        qk_norm: whether queries and keys pass an RMSNorm over all heads together.
        layer_scale: whether each half's output is multiplied by a vector.
    """

    width: int
    num_heads: int
    intermediate_size: int
    activation: Activation
    gated: bool = False
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    norm_eps: float = 1e-6
    qkv_bias: bool = True
    qk_norm: bool = False
    layer_scale: bool = False

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.width // self.num_heads

    def parameter_count(self) -> int:
        """How many parameters the block has."""
        width, inner = self.width, self.intermediate_size
        biases = self.qkv_bias * 3 * width + width + (1 + self.gated) * inner + width
        norms = (2 if self.norm == "rms_norm" else 4) * width
        return self.matmul_parameters() + biases + norms + (2 * self.qk_norm + 2 * self.layer_scale) * width

    def matmul_parameters(self) -> int:
        """How many of them multiply each patch."""
        return 4 * self.width * self.width + (2 + self.gated) * self.width * self.intermediate_size

    def flops(self, segments: Iterable[int]) -> float:
        """Floating-point operations of one forward over segments of these many patches."""
        return sum(2.0 * self.matmul_parameters() * length + 4.0 * self.width * length**2 for length in segments)
