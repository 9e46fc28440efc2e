"""Running the steps of `plan_cases` on accelerators: peak memory and seconds of each."""

from __future__ import annotations

import contextlib
import gc
import statistics
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from loong_core.data.batch import PackedBatch
from loong_core.device import apply_environment, select
from loong_core.device.protocol import Device
from loong_core.engine.megatron.engine import MegatronEngine
from loong_core.engine.settings import EngineSettings
from loong_core.nn.decoder import Decoder
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.ranks import initialise_from_env
from loong_llm.families.registry import find_family
from loong_llm.model_config import read_model_config
from loong_llm.recipes.next_token import next_token_loss
from tools.bench.plan_cases import Case

WARMUP, STEPS = 2, 3


def measure_all(cases: Sequence[Case], budget: float) -> Iterator[dict[str, Any]]:
    """Measure what this number of ranks can, until `budget` seconds are over; a case that fails says why."""
    start = time.perf_counter()
    device = select("auto").device
    apply_environment(device)
    place, torch_device = initialise_from_env(device)
    contexts: dict[object, ParallelContext] = {}
    workspace = _warm_up(torch_device)
    for case in cases:
        if case.ranks != place.world_size:
            continue
        if time.perf_counter() - start > budget:
            yield case.about() | {"error": f"not measured: {budget:.0f} s are over"}
            continue
        if case.degrees not in contexts:
            contexts[case.degrees] = ParallelContext.build(case.degrees, torch_device)
        _release()
        held = device.memory().allocated
        device.reset_peak_memory()
        try:
            figures = _measure(case, contexts[case.degrees], device)
        except (RuntimeError, ValueError, TypeError) as error:
            traceback.print_exc(file=sys.stderr)
            figures = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        else:
            figures["peak_bytes"] = device.memory().peak - held + workspace
            figures["stages"] = _gathered(figures, place.world_size)
        yield case.about() | figures


def _measure(case: Case, context: ParallelContext, device: Device) -> dict[str, Any]:
    """Median seconds of the steps after warm-up, and of their updates."""
    torch_device = context.device
    model = read_model_config(case.model, {"num_hidden_layers": case.layers})
    settings = EngineSettings(precision="bf16" if device.torch_type != "cpu" else "fp32")
    numbers = context.layout.stage_layers(case.layers, model.config.layer_costs())[context.pipeline.rank]
    stages = []
    for number, layers in enumerate(numbers):
        first = context.is_first_stage and number == 0
        last = context.is_last_stage and number == len(numbers) - 1
        stage = Decoder(model.config, context, layers=layers, embedding=first, head=last, dtype=settings.dtype)
        _draw(stage, model.config.initializer_range)
        stages.append(stage)
    weight_map = find_family(model.hf_config).weight_map(model.config)
    engine = MegatronEngine(stages, weight_map, context, device, settings, hidden_size=model.config.hidden_size)
    generator = torch.Generator().manual_seed(context.data.rank)
    totals, updates, loss = [], [], 0.0
    for _ in range(WARMUP + STEPS):
        batches = [_batch(case, model.config.vocab_size, generator, torch_device) for _ in range(case.microbatches)]
        device.synchronize()
        start = time.perf_counter()
        loss = engine.accumulate(batches, next_token_loss).loss
        device.synchronize()
        middle = time.perf_counter()
        engine.grad_norm()
        engine.apply(1e-4)
        device.synchronize()
        end = time.perf_counter()
        totals.append(end - start)
        updates.append(end - middle)
    return {
        "step_seconds": statistics.median(totals[WARMUP:]),
        "update_seconds": statistics.median(updates[WARMUP:]),
        "loss": loss,
    }


def _batch(case: Case, vocabulary: int, generator: torch.Generator, device: torch.device) -> PackedBatch:
    lengths = case.lengths()
    ids = torch.randint(0, vocabulary, (sum(lengths) + 1,), generator=generator)
    return PackedBatch.from_lengths(ids[:-1], ids[1:], lengths).to(device)


@torch.no_grad()
def _draw(stage: nn.Module, deviation: float) -> None:
    """Random matrices, alike on ranks that hold the same; norms stay at one."""
    for number, parameter in enumerate(stage.parameters()):
        generator = torch.Generator(parameter.device).manual_seed(number)
        if parameter.ndim > 1:
            parameter.normal_(0.0, deviation, generator=generator)
        elif not bool((parameter == 1).all()):
            parameter.zero_()


def _warm_up(device: torch.device) -> int:
    """Make the libraries take their workspaces; bytes that they hold."""
    x = torch.ones(256, 256, device=device, dtype=torch.bfloat16)
    for _ in range(2):
        x = x @ x / 256
    del x
    gc.collect()
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def _release() -> None:
    """Free the tensors of the case before, whatever still refers to them: none is used again."""
    gc.collect()
    for thing in gc.get_objects():
        if type(thing) in (Tensor, nn.Parameter) and thing.is_cuda:
            with contextlib.suppress(RuntimeError):  # memory that is not the allocator's stays
                thing.untyped_storage().resize_(0)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _gathered(figures: dict[str, Any], ranks: int) -> list[int]:
    """Peak of every rank; the case's own becomes the largest."""
    if ranks == 1:
        return []
    peaks: list[Any] = [None] * ranks
    torch.distributed.all_gather_object(peaks, figures["peak_bytes"])
    figures["peak_bytes"] = max(peaks)
    return peaks
