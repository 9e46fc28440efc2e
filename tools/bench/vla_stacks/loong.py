"""Ours: engine fsdp on one rank, float32 main weights and moments, layers compiled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from loong_core.device import select
from loong_core.engine.fsdp.engine import FsdpEngine
from loong_core.engine.settings import EngineSettings
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.parallel.ranks import initialise_from_env
from loong_vla.data.prompts import BUCKET
from loong_vla.families.pi.batch import PiBatch
from loong_vla.families.pi.loss import pi_loss
from loong_vla.families.pi.model import PiPolicy
from loong_vla.families.pi.weights import pi_weight_map
from tools.bench.vla_stacks.work import CAMERAS, Work

NOTE = "float32 main weights and AdamW moments"


def build(work: Work) -> Callable[[int], float]:
    """A training step on the batch of a number, which gives the loss."""
    device = select(work.device).device
    _, torch_device = initialise_from_env(device)
    context = ParallelContext.build(Layout(), torch_device)
    config = work.config
    with torch.device(context.device):
        policy = PiPolicy(config)
        for name, parameter in policy.named_parameters():
            torch.nn.init.normal_(parameter, std=0.02 if parameter.ndim > 1 else 0.0)
            if "post_norm" in name or (name.startswith("vision") and "norm" in name and name.endswith("weight")):
                torch.nn.init.ones_(parameter)
    settings = EngineSettings(
        precision="bf16" if work.device == "cuda" else "fp32", weight_decay=0.01, compile_layers=work.compiled
    )
    engine = FsdpEngine([policy], pi_weight_map(config), context, device, settings)

    def step(number: int) -> float:
        loss = engine.accumulate([batch(work, number)], pi_loss)
        engine.apply(2.5e-5)
        return loss.loss

    return step


def batch(work: Work, number: int) -> PiBatch:
    """Random samples on the device, in the form in which the collator gives them."""
    config, device = work.config, work.device
    lengths = work.prompt_lengths(number)
    length = -(-int(lengths.max()) // BUCKET) * BUCKET
    shape = (work.batch, config.chunk_size, config.max_action_dim)
    generator = torch.Generator(device).manual_seed(number)
    trained = torch.zeros(shape, dtype=torch.bool, device=device)
    trained[..., : config.action_dim] = True
    size = config.image_size
    pictures = (work.batch, len(CAMERAS), 3, size, size)
    return PiBatch(
        images=torch.randint(0, 256, pictures, generator=generator, device=device, dtype=torch.uint8),
        tokens=torch.randint(0, config.sizes.vocab_size, (work.batch, length), generator=generator, device=device),
        token_mask=torch.from_numpy(np.arange(length)[None] < lengths[:, None]).to(device),
        actions=torch.randn(shape, generator=generator, device=device) * trained,
        noise=torch.randn(shape, generator=generator, device=device),
        time=torch.rand(work.batch, generator=generator, device=device),
        trained=trained,
    )
