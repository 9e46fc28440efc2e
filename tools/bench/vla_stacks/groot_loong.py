"""Ours on GR00T N1.7: engine fsdp on one rank, float32 main weights and moments, layers compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from loong_core.device import select
from loong_core.engine.fsdp.engine import FsdpEngine
from loong_core.engine.settings import EngineSettings
from loong_core.nn.freezing import freeze
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.parallel.ranks import initialise_from_env
from loong_vla.families.groot.policy import GrootPolicy, groot_policy_loss, spare_frozen_blocks
from loong_vla.families.groot.weights import groot_weight_map
from tools.bench.vla_stacks.groot_work import FROZEN, GrootWork

NOTE = "frozen backbone, one embodiment held, float32 main weights and AdamW moments, pictures prepared on the device"


def build(work: GrootWork) -> Callable[[int], float]:
    """A training step on the batch of a number, which gives the loss."""
    device = select(work.device).device
    _, torch_device = initialise_from_env(device)
    context = ParallelContext.build(Layout(), torch_device)
    with torch.device(context.device):
        policy = GrootPolicy(work.config)
        for parameter in policy.parameters():
            torch.nn.init.normal_(parameter, mean=1.0 if parameter.ndim == 1 else 0.0, std=0.02)
    weight_map = groot_weight_map(work.config)
    freeze([policy], weight_map, work.config.num_layers, context, frozen=FROZEN)
    spare_frozen_blocks(policy)
    settings = EngineSettings(
        precision="bf16" if work.device == "cuda" else "fp32",
        weight_decay=1e-5,
        betas=(0.9, 0.999),
        compile_layers=work.compiled,
    )
    engine = FsdpEngine([policy], weight_map, context, device, settings)
    batches = [work.samples(number).to(context.device) for number in range(4)]

    def step(number: int) -> float:
        loss = engine.accumulate([batches[number % len(batches)]], groot_policy_loss)
        engine.apply(1e-4)
        return loss.loss

    return step
