"""The matrix: layouts of ranks, each with a model, an engine and data, that must equal one rank."""

from __future__ import annotations

from dataclasses import dataclass

from toy_models import batch_of

from loong_core.data.batch import PackedBatch
from loong_core.parallel.layout import Layout

VOCABULARY = 61  # odd: every tensor degree has to pad it

_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "bos_token_id": None,
    "eos_token_id": None,
}
_MIXTURE = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 12,
    "mlp_only_layers": [1],
    "norm_topk_prob": True,
    "output_router_logits": True,
    "router_aux_loss_coef": 0.2,
    "router_aux_loss_scope": "layer",
    "router_z_loss_coef": 0.1,
}
MODELS = {
    "dense": {"model_type": "qwen3", **_SIZES},
    "biased": {"model_type": "qwen3", **_SIZES, "attention_bias": True},
    "few kv heads": {"model_type": "qwen3", **_SIZES, "num_key_value_heads": 2, "attention_bias": True},
    "tied": {"model_type": "qwen2", **_SIZES, "tie_word_embeddings": True},
    "six layers, tied": {"model_type": "llama", **_SIZES, "num_hidden_layers": 6, "tie_word_embeddings": True},
    "experts": {"model_type": "qwen3_moe", **_SIZES, **_MIXTURE},
}
DATA = {
    "packed": [[7, 1, 11], [13, 8], [6, 6, 17], [2, 9, 3], [30], [1, 1, 25], [12, 5], [19, 4]],
    "one length": [[16, 16]] * 8,
}
"""Lengths of the sequences of each microbatch of a step."""


@dataclass(frozen=True)
class Case:
    """One line of the matrix.

    Attributes:
        ranks: how many.
        layout: their degrees; what is left of the ranks reads different data.
        model: of `MODELS`.
        data: of `DATA`.
        engine: `megatron` or `fsdp`.
        quick: whether it is in the subset that runs with the other tests.
    """

    ranks: int
    layout: Layout
    model: str = "dense"
    data: str = "packed"
    engine: str = "megatron"
    quick: bool = False

    @property
    def has_experts(self) -> bool:
        """Whether router choices are to be counted."""
        return self.model == "experts"


def batches(data: str) -> list[PackedBatch]:
    """The microbatches of a step, of all data ranks."""
    return [batch_of(lengths, VOCABULARY, seed) for seed, lengths in enumerate(DATA[data])]


CASES = {
    # Data, and copies of it.
    "data 2": Case(2, Layout()),
    "data 4, two copies of the optimizer": Case(4, Layout(replicate=2), "tied"),
    # Tensor (with sequence) ranks; the vocabulary is padded.
    "tensor 2": Case(2, Layout(tensor=2), "biased"),
    "tensor 4, fewer key-value heads": Case(4, Layout(tensor=4), "few kv heads", quick=True),
    "tensor 2, data 2": Case(4, Layout(tensor=2), "tied", "one length"),
    "tensor 8, fewer key-value heads": Case(8, Layout(tensor=8), "few kv heads", "one length"),
    # Pipelines.
    "pipeline 2, tied": Case(2, Layout(pipeline=2), "tied"),
    "pipeline 2, virtual 2": Case(2, Layout(pipeline=2, virtual_pipeline=2), "dense", "one length"),
    "pipeline 2, virtual 2, packed, tied": Case(2, Layout(pipeline=2, virtual_pipeline=2), "tied", quick=True),
    "pipeline 2, uneven by hand": Case(2, Layout(pipeline=2, pipeline_layers=[4, 0])),
    "pipeline 4, uneven by rule, tied": Case(4, Layout(pipeline=4), "six layers, tied"),
    "pipeline 4, uneven by hand, tied": Case(
        4, Layout(pipeline=4, pipeline_layers=[0, 3, 2, 1]), "six layers, tied", "one length"
    ),
    "tensor 2, pipeline 2, tied": Case(4, Layout(tensor=2, pipeline=2), "tied"),
    "tensor 4, pipeline 2, fewer key-value heads": Case(8, Layout(tensor=4, pipeline=2), "few kv heads"),
    "tensor 2, pipeline 2, virtual 2, data 2": Case(8, Layout(tensor=2, pipeline=2, virtual_pipeline=2), "dense"),
    # Context: ring, Ulysses, mixed.
    "ring 2": Case(2, Layout(context=2)),
    "ring 2, one length": Case(2, Layout(context=2), "few kv heads", "one length"),
    "ring 4, data 2": Case(8, Layout(context=4), "biased"),
    "Ulysses 2": Case(2, Layout(context=2, ulysses=2), "dense", "one length"),
    "Ulysses 4, fewer key-value heads": Case(4, Layout(context=4, ulysses=4), "few kv heads"),
    "mixed context 2 x 2": Case(4, Layout(context=4, ulysses=2), quick=True),
    "tensor 2, ring 2": Case(4, Layout(tensor=2, context=2), "biased"),
    "tensor 4, Ulysses 2, fewer key-value heads": Case(8, Layout(tensor=4, context=2, ulysses=2), "few kv heads"),
    "tensor 2, pipeline 2, ring 2, tied": Case(8, Layout(tensor=2, pipeline=2, context=2), "tied"),
    "pipeline 2, virtual 2, mixed context 2 x 2": Case(
        8, Layout(pipeline=2, virtual_pipeline=2, context=4, ulysses=2), "dense", "one length"
    ),
    # Experts.
    "expert 2": Case(2, Layout(expert=2), "experts", "one length"),
    "tensor 2, expert 2": Case(4, Layout(tensor=2, expert=2), "experts"),
    "expert 2, expert-tensor 2": Case(4, Layout(expert=2, expert_tensor=2), "experts"),
    "ring 2, expert 2": Case(4, Layout(context=2, expert=2), "experts", quick=True),
    "pipeline 2, tensor 2, expert 2": Case(4, Layout(pipeline=2, tensor=2, expert=2), "experts", quick=True),
    "tensor 2, expert 4, data 4": Case(8, Layout(tensor=2, expert=4), "experts"),
    "tensor 4, expert 2, expert-tensor 2": Case(8, Layout(tensor=4, expert=2, expert_tensor=2), "experts"),
    "pipeline 2, tensor 2, Ulysses 2, expert 2": Case(
        8, Layout(pipeline=2, tensor=2, context=2, ulysses=2, expert=2), "experts"
    ),
    # The fsdp engine.
    "fsdp, shard 2": Case(2, Layout(), "tied", engine="fsdp"),
    "fsdp, two copies of shard 2": Case(4, Layout(replicate=2), "biased", engine="fsdp", quick=True),
    "fsdp, ring 2, data 2": Case(4, Layout(context=2), "few kv heads", engine="fsdp"),
    "fsdp, mixed context 2 x 2, data 2": Case(8, Layout(context=4, ulysses=2), "dense", engine="fsdp"),
    "fsdp, experts": Case(4, Layout(), "experts", engine="fsdp"),
}
