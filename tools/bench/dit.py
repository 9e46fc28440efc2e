"""A training step of Wan on cached latents, beside the plain diffusers module trained as DiffSynth-Studio does.

    python -m tools.bench.dit --record
    python -m tools.bench.dit --model tiny --device cpu --steps 2
    python -m tools.bench.dit --count

The work is the same for both: videos of `--frames` at `--size`, `--samples` a microbatch, `--batch` microbatches a
step, 512 text tokens, flow-matching loss, AdamW. `diffusers` is the recipe (examples/wanvideo/model_training of
DiffSynth-Studio, its single-GPU form, without its CPU offload of checkpoints, optimizer and parameters, and with
latents cached as here): weights, gradients and moments in bf16, every block recomputed, eager, `torch.optim.AdamW`, no
clipping. `loong` is engine fsdp: bf16 with float32 main weights, gradients and moments, layers compiled, nothing
recomputed, gradients clipped. `--stack` takes further forms of both: `loong-eager`, `loong-recompute`,
`diffusers-kept` (no recomputation), so that each difference can be told. A stack that fails is a row that says so.

After the steps that count, one more is profiled: its time by kind of work is printed and recorded. `--count` runs
nothing and prints what a step consists of: FLOPs by part, and bytes of the optimizer's and the engine's passes.

Model FLOPs are those of `WanConfig.flops_per_sample`, recomputation not counted; MFU is over the device's bf16 peak.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from loong_core.device import select
from loong_core.engine.fsdp.engine import FsdpEngine
from loong_core.engine.settings import EngineSettings
from loong_core.nn.parts import ALL_BLOCKS
from loong_core.nn.recompute import keep_less
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.parallel.ranks import initialise_from_env
from loong_dit.batch import DiffusionBatch
from loong_dit.data.assembly import pack_samples
from loong_dit.flow.loss import velocity_loss
from loong_dit.model import build_module, fill_module, module_weight_map
from loong_dit.model_source import ModelSource, open_source
from tools.bench.record import FOLDER, append
from tools.bench.step_profile import time_by_kind

TEXT_TOKENS = 512
TINY = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 24, "ffn_dim": 96, "text_dim": 32}
VAE_STEPS = {16: (4, 8, 8), 48: (4, 16, 16)}
"""Frames, rows and columns of pixels in one of latents, by the latents' channels."""

Step = Callable[[], float]


@dataclass(frozen=True)
class Work:
    """One comparison: the model, the size of its latents, microbatches a step, and samples in each."""

    source: ModelSource
    size: tuple[int, int, int]
    batch: int
    device: str
    samples: int = 1

    @property
    def tokens(self) -> int:
        """Of a sample."""
        return self.source.family.patch_form(self.source.config).tokens(self.size)

    def tensors(self, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Noisy latents, target, caption's embeddings and timestep of a sample, on the host."""
        generator = torch.Generator().manual_seed(seed)
        config = self.source.config
        clean, noise = (torch.randn(config.out_channels, *self.size, generator=generator) for _ in range(2))
        sigma = 0.1 + 0.8 * float(torch.rand((), generator=generator))
        text = torch.randn(TEXT_TOKENS, config.text_dim, generator=generator)
        return (1 - sigma) * clean + sigma * noise, noise - clean, text, torch.tensor([1000 * sigma])


def loong(work: Work, *, compiled: bool = True, recompute: bool = False) -> Step:
    """Ours, as `loong-dit train` runs it."""
    device = select(work.device).device
    _, where = initialise_from_env(device)
    context = ParallelContext.build(Layout(), where)
    precision = "fp32" if work.device == "cpu" else "bf16"
    settings = EngineSettings(precision=precision, weight_decay=0.01, compile_layers=compiled)
    module = build_module(work.source, context)
    fill_module(module, work.source, context, initialise="random")
    if recompute:
        keep_less([module], context, device, recompute=ALL_BLOCKS)
    engine = FsdpEngine([module], module_weight_map(work.source), context, device, settings)
    form, batches = work.source.family.patch_form(work.source.config), []
    for number in range(work.batch):
        drawn = [work.tensors(number * work.samples + place) for place in range(work.samples)]
        elements = form.patch_elements(work.source.config.out_channels)
        batches.append(
            pack_samples(
                patches=[form.inputs(noisy) for noisy, *_ in drawn],
                positions=[form.positions(work.size)] * work.samples,
                runs=[(work.tokens, float(timestep)) for *_, timestep in drawn],
                text=[text for _, _, text, _ in drawn],
                target=torch.cat([form.outputs(target) for _, target, *_ in drawn]),
                weights=torch.full((work.samples * work.tokens,), 1 / (work.tokens * elements)),
            )
        )
    pinned = [_pinned(batch, work.device) for batch in batches]

    def step() -> float:
        loss = engine.accumulate(pinned, velocity_loss)
        engine.grad_norm()
        engine.apply(1e-5)
        return loss.loss

    return step


def diffusers(work: Work, *, recompute: bool = True) -> Step:
    """The plain module as the recipe trains it."""
    from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

    dtype = torch.float32 if work.device == "cpu" else torch.bfloat16
    hf = {key: value for key, value in work.source.hf_config.items() if not key.startswith("_")}
    with torch.device(work.device):
        model: Any = WanTransformer3DModel(**hf)
    model = nn.Module.to(model, dtype)  # all of it, as the recipe has it
    if recompute:
        model.enable_gradient_checkpointing()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)
    samples = [work.tensors(number) for number in range(work.batch * work.samples)]
    microbatches = [
        [torch.stack(each) for each in zip(*samples[first : first + work.samples], strict=True)]
        for first in range(0, len(samples), work.samples)
    ]

    def step() -> float:
        total = 0.0
        for noisy, target, text, timestep in microbatches:
            given = [each.to(work.device, dtype) for each in (noisy, text)]
            said = model(given[0], timestep[:, 0].to(work.device), given[1], return_dict=False)[0]
            loss = torch.nn.functional.mse_loss(said.float(), target.to(work.device)) / work.batch
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


STACKS: dict[str, Callable[[Work], Step]] = {
    "diffusers": diffusers,
    "diffusers-kept": lambda work: diffusers(work, recompute=False),
    "loong": loong,
    "loong-eager": lambda work: loong(work, compiled=False),
    "loong-recompute": lambda work: loong(work, recompute=True),
}


def measure(name: str, work: Work, steps: int) -> dict[str, Any]:
    """Median step of a stack after two that warm up, and one more's time by kind."""
    device = select(work.device).device
    device.reset_peak_memory()
    step = STACKS[name](work)
    for _ in range(2):
        first = step()
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        loss = step()  # a number on the host: the device has finished
        seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds)
    spent = time_by_kind(step, work.device)
    samples = work.batch * work.samples
    flops = samples * work.source.config.flops_per_sample(work.tokens, TEXT_TOKENS) / median
    peak = device.peak_flops(torch.bfloat16)
    figures = {
        "stack": name,
        "model": work.source.name,
        "layers": work.source.config.num_layers,
        "tokens": work.tokens,
        "batch": work.batch,
        "samples": work.samples,
        "step_ms": round(1000 * median, 1),
        "samples_per_second": round(samples / median, 3),
        "tflops": round(flops / 1e12, 1),
        "mfu": round(flops / peak, 3) if peak and work.device != "cpu" else None,
        "memory_gib": round(device.memory().peak / 2**30, 1),
        "losses": f"{first:.4f} -> {loss:.4f}",
        "profile_ms": spent,
    }
    return figures


def let_go(device: str) -> None:
    """Give back what a stack has held, so that the next begins with nothing."""
    gc.collect()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.compiler.reset()
    if device != "cpu":
        torch.cuda.empty_cache()


def count(work: Work) -> dict[str, float]:
    """What a step consists of, by part.

    TFLOP of forward and backward (recomputing every block is a third more), and GB that pass through memory once a
    step whatever the batch: AdamW on float32 weights, gradients and moments (read and written), the weights' two
    casts to bf16, and the gradients' reduction, norm, scale and clipping.
    """
    config: Any = work.source.config
    width, layers, samples = config.width, config.num_layers, work.batch * work.samples
    tokens, text = work.tokens, TEXT_TOKENS
    tera = 1e-12 * samples * layers
    parameters = work.source.family.parameter_count(config) * 1e-9
    return {
        "self-attention, products, TFLOP": 6 * tera * 4 * width * width * tokens,
        "self-attention, pairs, TFLOP": 12 * tera * width * tokens * tokens,
        "cross-attention, products, TFLOP": 6 * tera * 2 * width * width * (tokens + text),
        "cross-attention, pairs, TFLOP": 12 * tera * width * tokens * text,
        "feed-forward, TFLOP": 6 * tera * 2 * width * config.ffn_dim * tokens,
        "all, TFLOP": 1e-12 * samples * config.flops_per_sample(tokens, text),
        "AdamW in float32, GB": 28 * parameters,
        "casts of weights, GB": 2 * 6 * parameters,
        "gradients to float32, norm, scale, clip, GB": (6 + 4 + 8 + 8) * parameters,
    }


def main() -> None:
    """Measure each stack on each model in turn, print a table, and keep the records if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["wan2.2-ti2v-5b", "wan2.1-t2v-1.3b"])
    parser.add_argument(
        "--stack", nargs="+", default=["diffusers", "loong", "loong-eager", "diffusers-kept"], choices=STACKS
    )
    parser.add_argument("--frames", type=int, default=49)
    parser.add_argument("--size", type=int, nargs=2, default=[480, 832], metavar=("ROWS", "COLUMNS"))
    parser.add_argument("--layers", type=int, help="fewer than the model has, for all stacks")
    parser.add_argument("--batch", type=int, default=1, help="microbatches a step")
    parser.add_argument("--samples", type=int, default=1, help="samples in a microbatch")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--count", action="store_true", help="print what a step consists of, and run nothing")
    parser.add_argument("--record", action="store_true", help="add the rows to docs/benchmarks/dit.jsonl")
    options = parser.parse_args()
    device = "cpu" if options.count else select(options.device).device.torch_type
    failed: list[str] = []
    for model in options.model:
        overrides = dict(TINY) if model == "tiny" else {}
        overrides |= {"num_layers": options.layers} if options.layers else {}
        source = open_source("wan2.1-t2v-1.3b" if model == "tiny" else model, overrides)
        frames, (rows, columns) = (5, (32, 32)) if model == "tiny" else (options.frames, options.size)
        steps = VAE_STEPS[source.config.out_channels]
        size = ((frames - 1) // steps[0] + 1, rows // steps[1], columns // steps[2])
        work = Work(source, size, options.batch, device, options.samples)
        if options.count:
            for part, amount in count(work).items():
                print(f"{model:18} {part:44} {amount:>8.1f}")
            continue
        found = {}
        for name in options.stack:
            try:
                figures = measure(name, work, options.steps)
            except Exception as error:  # memory that does not suffice, a compiler that fails: the next may do
                told = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                print(f"{model:18} {name:16} failed: {told}", flush=True)
                failed.append(f"{model} {name}")
                if options.record:
                    append(FOLDER / "dit.jsonl", {"stack": name, "model": model, "failed": told})
                continue
            finally:
                let_go(device)
            found[name] = figures
            print(
                f"{model:18} {name:16} {figures['step_ms']:>9} ms {figures['samples_per_second']:>8} samples/s "
                f"{figures['tflops']:>6} TFLOP/s  MFU {figures['mfu']}  {figures['memory_gib']} GiB  "
                f"{figures['losses']}",
                flush=True,
            )
            total = sum(figures["profile_ms"].values()) or 1.0
            for kind, spent in figures["profile_ms"].items():
                print(f"{'':18}   {kind:28} {spent:>9.1f} ms  {spent / total:>5.1%}", flush=True)
            if options.record:
                append(FOLDER / "dit.jsonl", figures)
        if "loong" in found and "diffusers" in found:
            ratio = float(found["loong"]["samples_per_second"] or 0) / float(
                found["diffusers"]["samples_per_second"] or 1
            )
            print(f"{model:18} loong / diffusers: {ratio:.2f}", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _pinned(batch: DiffusionBatch, device: str) -> DiffusionBatch:
    """The batch where a run's reader would have put it: on the device, before the step wants it."""
    return batch if device == "cpu" else batch.to(device)


if __name__ == "__main__":
    main()
