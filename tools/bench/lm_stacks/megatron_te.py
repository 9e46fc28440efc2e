"""megatron-core's GPTModel on TransformerEngine layers: distributed optimizer, fp32 main weights and gradients."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor

from tools.bench.lm_stacks.work import Work


def build(work: Work) -> Callable[[Tensor], float]:
    """One step on `[microbatches, batch, sequence + 1]` token ids, returning the loss."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29512")
    dist.init_process_group("nccl", rank=0, world_size=1)
    torch.cuda.set_device(0)
    parallel_state.initialize_model_parallel(1, 1)
    model_parallel_cuda_manual_seed(1)
    shape = work.shape
    moe = {}
    if shape.experts:
        moe = {
            "num_moe_experts": shape.experts,
            "moe_router_topk": shape.experts_per_token,
            "moe_ffn_hidden_size": shape.intermediate_size,
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_load_balancing_type": "aux_loss",
            "moe_aux_loss_coeff": 1e-3,
            "moe_grouped_gemm": True,
            "moe_permute_fusion": True,
            "moe_router_dtype": "fp32",
        }
    fp8 = {"fp8": "e4m3", "fp8_recipe": "blockwise"} if work.precision == "fp8" else {}
    config = TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        kv_channels=shape.head_dim,
        ffn_hidden_size=6144 if shape.experts else shape.intermediate_size,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        qk_layernorm=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_dropout_fusion=True,
        bias_activation_fusion=True,
        masked_softmax_fusion=True,
        persist_layer_norm=True,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=True,
        cross_entropy_loss_fusion=True,
        cross_entropy_fusion_impl="te",
        **fp8,  # type: ignore[arg-type]
        **moe,  # type: ignore[arg-type]
    )
    spec = get_gpt_layer_with_transformer_engine_spec(
        num_experts=shape.experts or None, moe_grouped_gemm=bool(shape.experts), qk_layernorm=True
    )
    model = GPTModel(
        config,
        spec,
        vocab_size=shape.vocab,
        max_sequence_length=work.sequence,
        position_embedding_type="rope",
        rotary_base=1_000_000,
        share_embeddings_and_output_weights=shape.tied,
    ).cuda()
    ddp = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, use_distributed_optimizer=True, overlap_grad_reduce=False
        ),
        Float16Module(config, model),
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=1e-4,
            weight_decay=0.01,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=True,
            clip_grad=1.0,
        ),
        [ddp],
    )
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    schedule = get_forward_backward_func()
    positions = torch.arange(work.sequence, device="cuda")[None].expand(work.batch, work.sequence)

    def forward_step(batches, chunk):  # noqa: ANN001, ANN202
        rows = next(batches)
        output = chunk(rows[:, :-1].contiguous(), positions, None, labels=rows[:, 1:].contiguous())
        return output, lambda loss: (loss.float().mean(), {"loss": loss.detach().float().mean()})

    def step(ids: Tensor) -> float:
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        losses = schedule(
            forward_step_func=forward_step,
            data_iterator=iter(list(ids)),
            model=[ddp],
            num_microbatches=len(ids),
            seq_length=work.sequence,
            micro_batch_size=work.batch,
            forward_only=False,
        )
        optimizer.step()
        return float(sum(each["loss"] for each in losses) / len(losses))

    return step


def memory_note() -> str:
    """What the optimizer keeps."""
    return "fp32 main weights, gradients and moments"
