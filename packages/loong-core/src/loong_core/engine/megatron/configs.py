"""The project's settings in megatron-core's terms.

megatron-core reads a `TransformerConfig` for everything, also where the model is none of its own. What describes a
model there (layers, heads) only has to pass its checks: the modules are ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from loong_core.engine.settings import EngineSettings
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.megatron_import import import_megatron

if TYPE_CHECKING:
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import TransformerConfig


def transformer_config(settings: EngineSettings, context: ParallelContext, hidden_size: int) -> TransformerConfig:
    """What schedules and gradient finalisation read."""
    import_megatron()
    from megatron.core.transformer.transformer_config import TransformerConfig

    layout = context.layout
    interleaved = layout.virtual_pipeline > 1
    return TransformerConfig(
        num_layers=layout.stages,
        hidden_size=hidden_size,
        num_attention_heads=layout.tensor,
        tensor_model_parallel_size=layout.tensor,
        sequence_parallel=context.sequence_parallel,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline if interleaved else None,
        context_parallel_size=layout.context,
        pipeline_dtype=settings.dtype,
        params_dtype=settings.dtype,
        bf16=settings.dtype is torch.bfloat16,
        # Gradients are summed, over microbatches and ranks, and divided once by the global batch's tokens.
        calculate_per_token_loss=True,
        # With two pipeline ranks both neighbours are the same rank: batched sends to it and from it cross.
        overlap_p2p_comm=interleaved,
        batch_p2p_comm=not interleaved,
    )


def ddp_config(settings: EngineSettings, context: ParallelContext) -> DistributedDataParallelConfig:
    """How gradients are buffered and reduced: in float32, and with an optimizer each data rank only its share."""
    import_megatron()
    from megatron.core.distributed import DistributedDataParallelConfig

    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=settings.has_optimizer,
        use_distributed_optimizer=settings.has_optimizer,
        num_distributed_optimizer_instances=context.layout.replicate if settings.has_optimizer else 1,
        overlap_grad_reduce=settings.overlap_grad_reduce,
        overlap_param_gather=settings.overlap_param_gather and settings.has_optimizer,
        bucket_size=settings.bucket_size,
    )


def optimizer_config(settings: EngineSettings) -> OptimizerConfig:
    """AdamW; its learning rate is set at every step."""
    import_megatron()
    from megatron.core.optimizer import OptimizerConfig

    return OptimizerConfig(
        optimizer="adam",
        lr=0.0,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        adam_eps=settings.eps,
        bf16=settings.dtype is torch.bfloat16,
        params_dtype=settings.dtype,
        clip_grad=settings.clip_grad,
        use_distributed_optimizer=True,
        overlap_param_gather=settings.overlap_param_gather,
    )
