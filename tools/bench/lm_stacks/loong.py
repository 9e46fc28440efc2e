"""This project: the Decoder of the Qwen3 families on the megatron engine, as `loong-llm train` runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from loong_core.data.batch import PackedBatch
from loong_core.device import select
from loong_core.engine.megatron.engine import MegatronEngine
from loong_core.engine.settings import EngineSettings
from loong_core.nn.decoder import Decoder
from loong_core.nn.initialize import initialize
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.parallel.ranks import initialise_from_env
from loong_llm.families.registry import find_family
from loong_llm.recipes.next_token import next_token_loss
from tools.bench.lm_stacks.work import Work


def build(work: Work) -> Callable[[Tensor], float]:
    """One step on `[microbatches, batch, sequence + 1]` token ids, returning the loss."""
    device = select(work.device).device
    _, torch_device = initialise_from_env(device)
    context = ParallelContext.build(Layout(), torch_device)
    hf = work.shape.hf_config(work.sequence)
    family = find_family(hf)
    config = family.decoder_config(hf)
    weight_map = family.weight_map(config)
    settings = EngineSettings(precision="fp32" if work.device == "cpu" else "bf16", weight_decay=0.01)
    model = Decoder(config, context, dtype=settings.dtype)
    initialize(model, weight_map, context, 0, config.initializer_range)
    model = model.to(torch_device)
    engine = MegatronEngine([model], weight_map, context, device, settings, hidden_size=config.hidden_size)
    # Positions and bounds are those of every batch; in a run they are on the device before a step wants them.
    some = torch.zeros(work.batch * work.sequence, dtype=torch.int64)
    packed = PackedBatch.from_lengths(some, some, [work.sequence] * work.batch).to(torch_device)

    def step(ids: Tensor) -> float:
        batches = [replace(packed, tokens=rows[:, :-1].flatten(), labels=rows[:, 1:].flatten()) for rows in ids]
        loss = engine.accumulate(batches, next_token_loss)
        engine.grad_norm()
        engine.apply(1e-4)
        return loss.loss

    return step


def memory_note() -> str:
    """What the optimizer keeps."""
    return "fp32 main weights, gradients and moments"
