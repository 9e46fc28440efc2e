"""The quickstart: a small Wan in pixel space, trained from random weights on handwritten digits that move.

It is an ordinary run: its run file is `run.yaml` in the output folder, its cache is beside it. What it says of itself
at the end is a classifier's word, which has seen real digits only.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch

from loong_core.cli.curves import draw_runs, read_run
from loong_core.config import CheckpointSection, EmaSection, LoggingSection, RunFolder, TrainSection
from loong_core.config.loading import Loaded
from loong_core.data.shuffle import permutation
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.ranks import RankPlace
from loong_core.train.loop import Progress
from loong_core.train.metrics import read_rows
from loong_dit.check import checked
from loong_dit.codecs.codec import Words
from loong_dit.digits.judge import DigitJudge
from loong_dit.digits.videos import (
    CANVAS,
    FRAMES,
    TRACKS,
    WORDS_WIDTH,
    caption_of,
    real_digits,
    still,
    write_digit_cache,
)
from loong_dit.flow.sampling import SamplerSettings, Wanted, draw_samples, module_says
from loong_dit.media.writing import write_grid
from loong_dit.model import build_module, fill_module
from loong_dit.model_source import ModelSource, open_source
from loong_dit.recipes.train import train_diffusion
from loong_dit.recipes.training_config import (
    DiffusionModelSection,
    DiffusionTrainingConfig,
    FlowSection,
    LatentDataSection,
)
from loong_dit.reference_model import largest_difference

MODEL = {
    "patch_size": [1, 4, 4],
    "num_attention_heads": 4,
    "attention_head_dim": 24,
    "in_channels": 1,
    "out_channels": 1,
    "text_dim": WORDS_WIDTH,
    "freq_dim": 64,
    "ffn_dim": 384,
    "num_layers": 4,
}
"""What makes the small model out of Wan2.1-T2V-1.3B's config: 0.7 million parameters."""

SAMPLES, GRID = 200, 40
STEPS, GUIDANCE = 20, 3.0


def quickstart_config(output: Path) -> DiffusionTrainingConfig:
    """The run, with sizes for two CPU cores and a few minutes; its cache is `output/data`."""
    return DiffusionTrainingConfig(
        output=str(output),
        model=DiffusionModelSection(source="wan2.1-t2v-1.3b", overrides=MODEL, text_length=4),
        data=LatentDataSection(cache=str(output / "data"), validation_fraction=0.05, caption_dropout=0.1),
        flow=FlowSection(shift=1.0),
        train=TrainSection(
            steps=1000,
            global_batch_size=64,
            micro_batch_size=32,
            lr=2e-3,
            min_lr=5e-5,
            warmup_steps=50,
            beta2=0.99,
            weight_decay=0.01,
            ema=EmaSection(decay=0.995),
            validate_every=500,
            validation_steps=2,
        ),
        checkpoint=CheckpointSection(every=500),
        logging=LoggingSection(every=50),
    )


def prepare(output: Path) -> None:
    """Write the cache, if it is not there."""
    if not (output / "data" / "manifest.json").exists():
        write_digit_cache(output / "data")


def quickstart(output: Path) -> None:
    """Train the quickstart's model into `output`, draw samples, and say how many are what was asked. Collective."""
    place = RankPlace.from_env()
    config = quickstart_config(output)
    checked(Loaded(config, [], frozenset()), place.world_size)
    progress = train_diffusion(config)
    if place.rank == 0:
        _show(config, progress)


def _show(config: DiffusionTrainingConfig, progress: Progress) -> None:
    folder = RunFolder(Path(config.output))
    source = open_source(folder.hf)
    trained, held_out = real_digits()
    judge = DigitJudge(trained)
    real = judge.share_right(held_out.pictures, held_out.labels)
    print(f"a classifier that has seen real digits only is right about {real:.1%} of {len(held_out.labels)} held out")
    digits, directions = _asked(SAMPLES)
    captions = [caption_of(digit, direction) for digit, direction in zip(digits, directions)]
    videos = _draw(source, captions, seed=1)
    right = judge.share_right(_stills(videos, directions), digits)
    order = permutation(SAMPLES, 3).tolist()
    swapped = _draw(source, [caption_of(digits[place], way) for place, way in zip(order, directions)], seed=1)
    by_chance = judge.share_right(_stills(swapped, directions), digits)
    write_grid(folder.root / "grid.png", videos[:GRID], captions[:GRID], scale=6)
    draw_runs([read_run(folder.root)], folder.root / "loss.png")
    if find_spec("diffusers") is not None:
        difference = largest_difference(source)
        print(f"diffusers opens {folder.hf / 'transformer'}; its output differs from ours by {difference:.1e} at most")
    rows = read_rows(folder.metrics)
    speed = sorted(row["samples_per_second"] for row in rows)[len(rows) // 2]
    print(
        f"held-out loss {progress.first_val_loss:.4f} -> {progress.last_val_loss:.4f}, {speed:,.0f} samples/s; it sees "
        f"the digit that was asked for in {right:.1%} of {SAMPLES} samples, and in {by_chance:.1%} with captions "
        f"swapped; look at {folder.root / 'grid.png'}"
    )


def _asked(count: int) -> tuple[list[int], list[str]]:
    """Digits and directions of so many samples."""
    directions = list(TRACKS)
    return [number % 10 for number in range(count)], [directions[number // 10 % 4] for number in range(count)]


def _draw(source: ModelSource, captions: list[str], *, seed: int) -> list[torch.Tensor]:
    """A video `[1, frames, rows, columns]` for each caption."""
    context, words = ParallelContext.single(), Words(WORDS_WIDTH)
    module = build_module(source, context)
    fill_module(module, source, context)
    settings = SamplerSettings(
        form=source.family.patch_form(source.config),
        channels=1,
        steps=STEPS,
        shift=1.0,
        guidance=GUIDANCE,
        seed=seed,
        text_length=source.text_length,
    )
    wanted = [Wanted((FRAMES, CANVAS, CANVAS), text) for text in words.encode(captions)]
    return draw_samples(module_says(module.eval(), "cpu"), wanted, words.encode([""])[0], settings)


def _stills(videos: list[torch.Tensor], directions: list[str]) -> torch.Tensor:
    return torch.stack([still(video, direction) for video, direction in zip(videos, directions)])
