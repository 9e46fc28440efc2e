"""The work that every stack does: shapes, tokens, and the operations that count."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """A Qwen3-shaped model. `experts` is 0 for a dense one, whose `intermediate_size` is then the feed-forward's."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    experts: int = 0
    experts_per_token: int = 0
    vocab: int = 151_936
    tied: bool = False

    @property
    def matmul_parameters(self) -> int:
        """Parameters that multiply each token: the head once, the embedding (a lookup) not at all."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        width = self.intermediate_size * max(self.experts_per_token, 1)
        feed_forward = 3 * self.hidden * width + self.hidden * self.experts
        return self.layers * (attention + feed_forward) + self.vocab * self.hidden

    def flops_per_token(self, sequence: int) -> float:
        """`6 * matmul_parameters + 6 * layers * heads * head_dim * sequence` (causal attention)."""
        return 6.0 * self.matmul_parameters + 6.0 * self.layers * self.heads * self.head_dim * sequence

    def hf_config(self, sequence: int) -> dict[str, object]:
        """The shape as a Hugging Face `config.json`."""
        common = {
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": sequence,
            "tie_word_embeddings": self.tied,
            "rope_theta": 1_000_000,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "attention_bias": False,
            "initializer_range": 0.02,
        }
        if not self.experts:
            return common | {"model_type": "qwen3", "intermediate_size": self.intermediate_size}
        return common | {
            "model_type": "qwen3_moe",
            "intermediate_size": 6144,
            "moe_intermediate_size": self.intermediate_size,
            "num_experts": self.experts,
            "num_experts_per_tok": self.experts_per_token,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "router_aux_loss_coef": 0.001,
            "output_router_logits": False,
        }


SHAPES = {
    "qwen3-8b-l8": Shape(8, 4096, 32, 8, 128, 12_288),
    "qwen3-30b-a3b-l8": Shape(8, 2048, 32, 4, 128, 768, 128, 8),
    "qwen3-0.6b": Shape(28, 1024, 16, 8, 128, 3072, tied=True),
    "tiny": Shape(2, 128, 4, 2, 32, 256, vocab=512),
    "tiny-moe": Shape(2, 128, 4, 2, 32, 64, 8, 2, vocab=512),
}


@dataclass(frozen=True)
class Work:
    """What one step is: `microbatches` times `batch` sequences, forward, backward, clipping and AdamW."""

    shape: Shape
    precision: str
    sequence: int
    batch: int
    microbatches: int
    device: str

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.sequence * self.batch * self.microbatches

    def token_ids(self, step: int) -> Tensor:
        """`[microbatches, batch, sequence + 1]`, the same for every stack."""
        generator = torch.Generator(self.device).manual_seed(1000 + step % 8)
        size = (self.microbatches, self.batch, self.sequence + 1)
        return torch.randint(0, self.shape.vocab, size, generator=generator, device=self.device)

    def shrunk(self, layers: int | None) -> Work:
        """The same work on a model with another number of layers."""
        return self if layers is None else replace(self, shape=replace(self.shape, layers=layers))
