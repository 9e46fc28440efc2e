"""A GPTModel of megatron-core's own on the CPU, saved by megatron-core's own `dist_checkpointing`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any
from unittest.mock import patch
from zlib import crc32

import torch
from torch import Tensor
from torch.nn import functional as F

from loong_core.device.cpu import CpuDevice
from loong_core.device.megatron_on_cpu import answering

PADDED_VOCABULARY = 64


class _NoTracker:
    """In place of random states that a model without dropout does not draw from."""

    def fork(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is kept."""
        return contextlib.nullcontext()


@contextlib.contextmanager
def _without_cuda() -> Iterator[None]:
    with (
        answering(CpuDevice()),
        patch("torch.cuda.synchronize", lambda *arguments: None),
        patch("torch.cuda.current_device", lambda: "cpu"),
        patch("megatron.core.tensor_parallel.get_cuda_rng_tracker", _NoTracker),
        # A save that is waited for needs no queue of another process, which would outlive this one.
        patch("megatron.core.dist_checkpointing.strategies.filesystem_async._results_queue", Queue()),
    ):
        yield


def save_gpt(
    folder: Path, hf: dict[str, Any], tokens: list[int] | None, tensor: int = 1, pipeline: int = 1, expert: int = 1
) -> Tensor | None:
    """Save a model of a `config.json` from all ranks; the logits of `tokens`, `[tokens, padded vocabulary]`, if given.

    A weight is a function of its name and its place in the whole tensor, so the content does not depend on the layout.
    """
    from loong_core.parallel.megatron_import import import_megatron

    import_megatron()
    from megatron.core import dist_checkpointing, parallel_state

    with _without_cuda():
        parallel_state.initialize_model_parallel(tensor, pipeline, expert_model_parallel_size=expert)
        try:
            model = _gpt(hf, tensor, pipeline, expert)
            state = model.sharded_state_dict(prefix="")
            _fill(state)
            folder.mkdir(exist_ok=True)
            dist_checkpointing.save({**state, "iteration": 7}, str(folder), async_strategy="mcore")
            return None if tokens is None else _logits(model, tokens)
        finally:
            parallel_state.destroy_model_parallel()


def _gpt(hf: dict[str, Any], tensor: int, pipeline: int, expert: int) -> Any:
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    experts = hf.get("num_experts", hf.get("num_local_experts"))
    mixture = {}
    if experts:
        mixture = {
            "num_moe_experts": experts,
            "moe_router_topk": hf["num_experts_per_tok"],
            "moe_ffn_hidden_size": hf.get("moe_intermediate_size", hf["intermediate_size"]),
            "moe_router_load_balancing_type": "none",
            "moe_token_dispatcher_type": "allgather",
        }
    qk_norm = hf["model_type"].startswith("qwen3")
    config = TransformerConfig(
        num_layers=hf["num_hidden_layers"],
        hidden_size=hf["hidden_size"],
        ffn_hidden_size=hf["intermediate_size"],
        num_attention_heads=hf["num_attention_heads"],
        num_query_groups=hf["num_key_value_heads"],
        kv_channels=hf["hidden_size"] // hf["num_attention_heads"],
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        expert_model_parallel_size=expert,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        normalization="RMSNorm",
        layernorm_epsilon=hf["rms_norm_eps"],
        qk_layernorm=qk_norm,
        add_bias_linear=False,
        add_qkv_bias=hf["model_type"] == "qwen2",
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        **mixture,
    )
    return GPTModel(
        config,
        get_gpt_layer_local_spec(num_experts=experts, qk_layernorm=qk_norm, normalization="RMSNorm"),
        vocab_size=PADDED_VOCABULARY,
        max_sequence_length=64,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=hf["tie_word_embeddings"],
        position_embedding_type="rope",
        rotary_base=hf["rope_theta"],
    )


@torch.no_grad()
def _fill(state: dict[str, Any]) -> None:
    """Give each tensor its values; those of a factory (gate and up in one) are views of the parameter."""
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories

    apply_factories(state)
    for part in nested_values(state):
        if isinstance(part, ShardedTensor) and part.data is not None:
            rank = len(part.local_shape)
            shape, offsets = part.global_shape[-rank:], part.global_offset[-rank:]
            index = torch.full(
                (), crc32(f"{part.key}{part.global_offset[:-rank]}".encode()) % 1000, dtype=torch.float64
            )
            for extent, offset, size in zip(shape, offsets, part.local_shape, strict=True):
                index = index[..., None] * extent + offset + torch.arange(size)
            norm = "norm" in part.key
            part.data.copy_(norm + (0.1 if norm else 0.3) * torch.sin(index))


@torch.no_grad()
def _logits(model: Any, tokens: list[int]) -> Tensor:
    ids, length = torch.tensor([tokens]), len(tokens)
    later = torch.ones(length, length, dtype=torch.bool).triu(1)[None, None]
    return model(ids, torch.arange(length)[None], later)[0]
