"""Small models of every family, with each parameter at random, and transformers' class of them made exact."""

from __future__ import annotations

from pathlib import Path
from types import MethodType

import torch
from torch import Tensor, nn

from loong_core.checkpoint.weight_map import WeightMap
from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.parallel.context import ParallelContext

SMALL = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

CONFIGS = {
    "llama, all heads with keys of their own": {"model_type": "llama", **SMALL, "num_key_value_heads": 4},
    "llama, grouped queries": {"model_type": "llama", **SMALL, "rms_norm_eps": 1e-5},
    "llama, one key-value head, every bias, head_dim unlike hidden/heads": {
        "model_type": "llama", **SMALL, "num_key_value_heads": 1, "head_dim": 10,
        "attention_bias": True, "mlp_bias": True,
    },
    "llama 3.1, scaled rotary": {"model_type": "llama", **SMALL, "rope_theta": 100.0, "rope_scaling": LLAMA3_SCALING},
    "llama, linearly scaled rotary, tied": {
        "model_type": "llama", **SMALL, "rope_scaling": {"type": "linear", "factor": 3.0}, "tie_word_embeddings": True,
    },
    "qwen2": {"model_type": "qwen2", **SMALL, "rope_theta": 1e6},
    "qwen2, tied": {"model_type": "qwen2", **SMALL, "tie_word_embeddings": True},
    "qwen3, head_dim unlike hidden/heads": {"model_type": "qwen3", **SMALL, "head_dim": 16},
    "qwen3, tied, biased": {
        "model_type": "qwen3", **SMALL, "head_dim": 8, "tie_word_embeddings": True, "attention_bias": True,
    },
}  # fmt: skip


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Draw every parameter, also those that start as zeros or ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3
            parameter.copy_(drawn + 1 if parameter.ndim == 1 and name.endswith("weight") else drawn)


def reference(hf: dict, seed: int = 0) -> nn.Module:
    """Transformers' model of a config in float64, without the float32 steps that its norms and routers take inside."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**hf)
    config._experts_implementation = "eager"  # torch's grouped product, the default, takes no float64
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float64, attn_implementation="sdpa")
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(_exact_norm, module)
        if type(module).__name__.endswith("TopKRouter"):
            module.forward = MethodType(_exact_router, module)
    randomise(model, seed)
    return model


def _exact_norm(norm: nn.Module, x: Tensor) -> Tensor:
    return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)


def _exact_router(router: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = x.reshape(-1, router.hidden_dim) @ router.weight.T
    weights, experts = logits.softmax(-1).topk(router.top_k)
    if getattr(router, "norm_topk_prob", True):
        weights = weights / weights.sum(-1, keepdim=True)
    return logits, weights, experts


def save(model: nn.Module, folder: Path) -> Path:
    """Save transformers' model as it is, in its own dtype."""
    model.save_pretrained(folder)
    return folder


def batch_of(lengths: list[int], vocab_size: int = SMALL["vocab_size"], seed: int = 0) -> PackedBatch:
    """Random sequences; the first label of each is ignored, the last token predicts at random."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab_size, (sum(lengths),), generator=generator)
    batch = PackedBatch.from_lengths(tokens, torch.randint(vocab_size, tokens.shape, generator=generator), lengths)
    batch.labels[batch.cu_seqlens[:-1].long()] = IGNORED_LABEL
    return batch


def named_gradients(module: nn.Module, weight_map: WeightMap, context: ParallelContext) -> dict[str, Tensor]:
    """Gradients in Hugging Face names and shapes, of a module on one rank."""
    found: dict[str, Tensor] = {}
    for parameter, placement in weight_map.placements(module, context):
        assert parameter.grad is not None, placement.name
        for piece, part in zip(placement.pieces, placement.from_local(parameter.grad), strict=True):
            whole = found.setdefault(piece.name, torch.zeros(piece.global_shape, dtype=part.dtype))
            whole[piece.slices] = part
    return found
