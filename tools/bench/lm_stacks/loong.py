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
from loong_core.precision.apply import apply_precision
from loong_core.precision.settings import Choice, PrecisionSettings
from loong_core.precision.step import StepPrecision
from loong_core.precision.table import table_for
from loong_llm.families.registry import find_family
from loong_llm.recipes.next_token import next_token_loss
from tools.bench.lm_stacks.work import Work

RECIPES: dict[str, Choice] = {
    "bf16": "bf16",
    "fp8": "blockwise",
    "fp8-rowwise": "rowwise",
    "fp8-tensorwise": "tensorwise",
    "adaptive": "adaptive",
}


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
    recipe = RECIPES[work.precision]
    if recipe != "bf16":
        chosen = PrecisionSettings(recipe, check_every=1000)
        hardware = device.hardware()
        table = table_for(hardware.name) if hardware is not None and recipe == "adaptive" else None
        applied = apply_precision([model], weight_map, config.num_layers, context, chosen, table)
        engine.precision = StepPrecision(applied.layers, hold=True, check_every=chosen.check_every)
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
