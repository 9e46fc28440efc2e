"""Training the two parts, each under an engine and a layout of its own, on the ranks of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core_toys.training import assemble
from core_toys.two_parts import (
    DECODER_MAP,
    ENCODER_MAP,
    WIDTH,
    PictureFeeding,
    build_decoder,
    build_encoder,
    forward_step,
    microbatch,
)
from loong_core.checkpoint.resume import Checkpointer
from loong_core.device.cpu import CpuDevice
from loong_core.engine.choice import EngineName, build_engine
from loong_core.engine.components.engine import ComponentsEngine, Feeder
from loong_core.engine.components.feeding import component_contexts
from loong_core.engine.settings import EngineSettings
from loong_core.nn.parts import ALL_BLOCKS, NOTHING, Parts
from loong_core.nn.recompute import keep_less
from loong_core.parallel.layout import Layout

STEP = 8
"""Microbatches of a step."""
FP64 = EngineSettings(precision="fp64")
FP32 = EngineSettings(precision="fp32", clip_grad=0.5, eps=1e-4)


ONE_RANK = Layout()


@dataclass(frozen=True)
class Case:
    """Layouts of the decoder and the encoder, and what else is varied."""

    ranks: int
    decoder: Layout
    encoder: Layout = ONE_RANK
    sparing: bool = True
    engine: EngineName = "megatron"
    encoder_engine: EngineName = "megatron"
    recompute: Parts = NOTHING
    offload: bool = False


CASES = {
    "tensor 2, pipeline 2, fed by data 4": Case(4, Layout(tensor=2, pipeline=2)),
    "the same, encoder recomputed": Case(4, Layout(tensor=2, pipeline=2), recompute=ALL_BLOCKS),
    "tensor 2, pipeline 2, fed by tensor 2, data 2": Case(4, Layout(tensor=2, pipeline=2), Layout(tensor=2)),
    "virtual 2, fed by data 2, everything to everyone": Case(2, Layout(pipeline=2, virtual_pipeline=2), sparing=False),
    "pipeline 2, features waiting on the host": Case(2, Layout(pipeline=2), offload=True),
    "ring 2, data 2, fed by tensor 2": Case(4, Layout(context=2), Layout(tensor=2)),
    "tensor 2, data 2, fed by fsdp on 4": Case(4, Layout(tensor=2), encoder_engine="fsdp"),
    "fsdp on 4, fed by tensor 1 in two copies": Case(
        4, Layout(), Layout(replicate=2), engine="fsdp", recompute=Parts(modules=("feed_forward",))
    ),
}


def engine_of(case: Case, settings: EngineSettings, *, frozen: bool = False) -> ComponentsEngine:
    """Both parts under their engines on this rank."""
    contexts = component_contexts({"decoder": case.decoder, "encoder": case.encoder}, "cpu")
    decoder, encoder = contexts["decoder"], contexts["encoder"]
    device = CpuDevice()
    stages = build_decoder(decoder, settings.dtype)
    encoder_stage = build_encoder(encoder, settings.dtype)
    encoder_stage.requires_grad_(not frozen)
    keep_less([encoder_stage], encoder, device, recompute=case.recompute, component="encoder.")
    main = build_engine(case.engine, stages, DECODER_MAP, decoder, device, settings)
    led = build_engine(case.encoder_engine, [encoder_stage], ENCODER_MAP, encoder, device, settings)
    feeding = PictureFeeding(decoder, case.sparing)
    feeder = Feeder("encoder", led, encoder, feeding, WIDTH, settings.dtype, case.offload)
    return ComponentsEngine(main, decoder, [feeder])


def run_case(case: Case, steps: int, frozen: bool = False) -> tuple[float, float, dict, list, dict, float]:
    """Loss, norm and gradients of a float64 step; losses and norms of float32 steps, and the state after them."""
    engine = engine_of(case, FP64, frozen=frozen)
    loss = engine.accumulate(own_batches(engine, 0), forward_step)
    exact = loss.loss, engine.grad_norm(), assemble(engine.gradient_pieces())
    engine = engine_of(case, FP32, frozen=frozen)
    curve = []
    for step in range(steps):
        loss = engine.accumulate(own_batches(engine, step), forward_step)
        curve.append((loss.loss, engine.grad_norm()))
        engine.apply(0.01)
    held_out = engine.evaluate(own_batches(engine, steps), forward_step).loss
    return *exact, curve, assemble(engine.state_pieces()), held_out


def own_batches(engine: ComponentsEngine, step: int) -> list:
    """What this data rank sees of a step."""
    data = engine.context.data
    return [microbatch(number) for number in range(step * STEP, (step + 1) * STEP)][data.rank :: data.size]


def resumed_elsewhere(folder: Path, layouts: Sequence[Case]) -> list[tuple[float, float]]:
    """Two steps under the first layouts, saved, and two more under the second."""
    curve = []
    for number, case in enumerate(layouts):
        engine = engine_of(case, FP32)
        checkpoints = Checkpointer(folder, context=engine.context)
        checkpoints.load(engine)
        for step in range(2 * number, 2 * number + 2):
            loss = engine.accumulate(own_batches(engine, step), forward_step)
            curve.append((loss.loss, engine.grad_norm()))
            engine.apply(0.01)
        checkpoints.save(2 * number + 2, engine, {})
        checkpoints.finish()
    return curve
