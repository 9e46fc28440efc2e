"""What one rank computes of a shrunken GR00T policy's step in float64."""

from __future__ import annotations

from dataclasses import replace

import torch
from groot_toys import groot_config, groot_policy, samples, tokenizer
from policy_ranks import Outcome

from loong_core.device.cpu import CpuDevice
from loong_core.engine.fsdp.engine import FsdpEngine
from loong_core.engine.settings import EngineSettings
from loong_core.nn.freezing import freeze
from loong_core.nn.parts import Parts
from loong_core.nn.recompute import keep_less
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_vla.families.groot.batch import GrootCollator
from loong_vla.families.groot.policy import groot_policy_loss
from loong_vla.families.groot.weights import groot_weight_map

SAMPLES = 4


def one_groot_step(
    degrees: dict[str, int],
    sharding: str = "everything",
    precision: str = "fp64",
    frozen: tuple[str, ...] = (),
    recomputed: bool = False,
) -> Outcome:
    """This rank's share of a step over four samples of two embodiments, with prompts of unlike lengths."""
    torch.set_num_threads(1)
    context = ParallelContext.build(Layout(**degrees), "cpu")
    config = groot_config(held=("robot 2", "robot 5"))
    policy = groot_policy(config)
    weight_map = groot_weight_map(config)
    if frozen:
        freeze([policy], weight_map, config.num_layers, context, frozen=frozen)
    if recomputed:
        keep_less([policy], context, CpuDevice(), recompute=Parts(blocks=100))
    settings = EngineSettings(precision=precision, sharding=sharding)  # type: ignore[arg-type]
    engine = FsdpEngine([policy], weight_map, context, CpuDevice(), settings)
    own = range(context.data.rank, SAMPLES, context.data.size)
    every = [*samples(), replace(samples()[0], task="another, longer task", number=3)]
    collate = GrootCollator(config, tokenizer(), seed=0)
    loss = engine.accumulate([collate([every[number]]) for number in own], groot_policy_loss)
    boxes = [(each.piece, each.tensor.clone()) for each in engine.gradient_pieces() if each.tensor is not None]
    return Outcome(loss.loss, engine.grad_norm(), boxes)
