"""The hyperparameters of a decoder, as plain data: what its layers are, not how they are run.

A decoder is a list of blocks, each a token mixer and a feed-forward, so that models which alternate kinds of layers are
written down as easily as uniform ones. Families make these from a Hugging Face `config.json`; nothing here imports
torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from loong_core.nn.moe.config import MoEConfig
from loong_core.parallel.stage_split import LayerCosts

_EMBEDDING_SHARE = 0.1
"""Work of the embedding relative to the head's: a lookup, but a table as large whose gradient is summed up."""


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by `factor` (position interpolation, arXiv:2306.15595)."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's scaling: low frequencies divided by `factor`, high ones kept, a smooth band between.

    Attributes:
        factor: divisor of the low frequencies.
        low_freq_factor: wavelengths above `original_max_position_embeddings / low_freq_factor` are scaled in full.
        high_freq_factor: wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        original_max_position_embeddings: context length of the training before the scaling, in tokens.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


RotaryScaling = LinearScaling | Llama3Scaling


@dataclass(frozen=True)
class RotaryConfig:
    """Rotary position embedding (arXiv:2104.09864).

    Attributes:
        theta: base of the geometric series of wavelengths.
        dim: how many leading dimensions of each head rotate.
        scaling: how the frequencies are stretched, None for not at all.
        sections: where tokens have positions along several axes (M-RoPE, arXiv:2409.12191: time, height, width), how
            many of the `dim / 2` frequencies turn by each; empty for one axis.
        interleaved: whether the axes take turns (t h w t h w ... t t), rather than each having a run of frequencies.
    """

    theta: float
    dim: int
    scaling: RotaryScaling | None = None
    sections: tuple[int, ...] = ()
    interleaved: bool = False


@dataclass(frozen=True)
class AttentionConfig:
    """Causal grouped-query attention.

    Attributes:
        num_heads: query heads.
        num_kv_heads: key and value heads, a divisor of `num_heads`.
        head_dim: width of a head; need not be `hidden_size / num_heads`.
        rotary: position embedding of queries and keys.
        qkv_bias: whether the query, key and value projections have a bias.
        output_bias: whether the output projection has one.
        qk_norm: whether each query and key head passes an RMSNorm over `head_dim` before the rotation.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary: RotaryConfig
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False

    def parameter_count(self, hidden_size: int) -> int:
        """How many parameters the mixer of a block of this width has."""
        query, key_value = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        weights = hidden_size * (query + 2 * key_value) + query * hidden_size
        biases = self.qkv_bias * (query + 2 * key_value) + self.output_bias * hidden_size
        return weights + biases + self.qk_norm * 2 * self.head_dim

    def matmul_parameters(self, hidden_size: int) -> int:
        """How many of them multiply each token."""
        return 2 * hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)


@dataclass(frozen=True)
class FeedForwardConfig:
    """Gated feed-forward: `down(silu(gate(x)) * up(x))` (SwiGLU, arXiv:2002.05202).

    Attributes:
        intermediate_size: width between up and down.
        bias: whether its three projections have a bias.
    """

    intermediate_size: int
    bias: bool = False

    def parameter_count(self, hidden_size: int) -> int:
        """How many parameters the feed-forward of a block of this width has."""
        return self.matmul_parameters(hidden_size) + self.bias * (2 * self.intermediate_size + hidden_size)

    def matmul_parameters(self, hidden_size: int) -> int:
        """How many of them multiply each token."""
        return 3 * hidden_size * self.intermediate_size


@dataclass(frozen=True)
class BlockConfig:
    """One pre-norm residual block: `x + mixer(norm(x))`, then `x + feed_forward(norm(x))`."""

    mixer: AttentionConfig
    feed_forward: FeedForwardConfig | MoEConfig


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder-only language model.

    Attributes:
        hidden_size: width of the residual stream.
        vocab_size: number of token ids.
        blocks: its layers, in order.
        norm_eps: the epsilon of every RMSNorm.
        tie_embeddings: whether the output projection is the embedding table.
        initializer_range: standard deviation of freshly drawn weights.
    """

    hidden_size: int
    vocab_size: int
    blocks: tuple[BlockConfig, ...]
    norm_eps: float
    tie_embeddings: bool = False
    initializer_range: float = 0.02

    @property
    def num_layers(self) -> int:
        """How many blocks there are."""
        return len(self.blocks)

    @property
    def attention(self) -> AttentionConfig:
        """The first block's attention, where heads and head size are asked of the model as a whole."""
        return self.blocks[0].mixer

    @property
    def feed_forward(self) -> FeedForwardConfig | MoEConfig:
        """The first block's feed-forward."""
        return self.blocks[0].feed_forward

    @property
    def mixtures(self) -> tuple[MoEConfig, ...]:
        """The feed-forwards that are mixtures of experts, in the order of the layers; empty in a dense model."""
        return tuple(block.feed_forward for block in self.blocks if isinstance(block.feed_forward, MoEConfig))

    def parameter_count(self) -> int:
        """How many parameters the model has, a tied table counted once."""
        blocks = sum(
            block.mixer.parameter_count(self.hidden_size)
            + block.feed_forward.parameter_count(self.hidden_size)
            + 2 * self.hidden_size
            for block in self.blocks
        )
        tables = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return blocks + tables + self.hidden_size

    def matmul_parameters(self) -> int:
        """How many parameters multiply each token: the head once, the embedding (a lookup) not at all."""
        return sum(self._block_products()) + self.vocab_size * self.hidden_size

    def layer_costs(self) -> LayerCosts:
        """Work of the layers, the embedding and the loss, in parameters that multiply each token."""
        head = self.vocab_size * self.hidden_size
        return LayerCosts(tuple(self._block_products()), _EMBEDDING_SHARE * head, head)

    def _block_products(self) -> list[int]:
        """How many parameters of each block multiply each token."""
        return [
            block.mixer.matmul_parameters(self.hidden_size) + block.feed_forward.matmul_parameters(self.hidden_size)
            for block in self.blocks
        ]

    def flops_per_token(self, sequence_length: int) -> float:
        """Floating-point operations of one token's forward and backward in causal sequences of this length.

        Two for each multiplying parameter forward and four backward; attention's two products over on average half
        of the sequence likewise: `6 * matmul_parameters + 6 * heads * head_dim * sequence_length` summed over layers.
        """
        attention = sum(block.mixer.num_heads * block.mixer.head_dim for block in self.blocks)
        return 6.0 * self.matmul_parameters() + 6.0 * attention * sequence_length
