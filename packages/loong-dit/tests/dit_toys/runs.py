"""Caches and runs small enough to see through."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from dit_toys.wan import TINY
from loong_core.config import load_run
from loong_core.parallel.ranks import RankPlace
from loong_core.train import run as run_module
from loong_dit.check import checked
from loong_dit.data.cache import CachedSample, CacheWriter
from loong_dit.data.manifest import Manifest
from loong_dit.recipes.train import train_diffusion
from loong_dit.recipes.training_config import DiffusionTrainingConfig

SIZES = ((1, 4, 4), (2, 4, 6), (1, 2, 2))


def write_model(folder: Path, hf=TINY, parts=("",), **index) -> Path:
    """A model's folder without weights; with parts a pipeline's."""
    for part in parts:
        (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / part / "config.json").write_text(json.dumps(hf))
    if index:
        (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def write_cache(
    folder: Path, *, samples=12, channels=4, text_dim=16, sizes=SIZES, kind="moments", seed=0, references=((),),
    **more,
) -> Path:  # fmt: skip
    """A cache of random latents of several sizes, with references of several sizes or none."""
    generator = torch.Generator().manual_seed(seed)
    manifest = Manifest(
        kind=kind,
        channels=channels,
        text_dim=text_dim,
        samples=0,
        vae={"name": "pixels", "hash": "toy"},
        text_encoder={"name": "toy", "hash": "toy"},
        **more,
    )
    writer = CacheWriter(folder, manifest, torch.randn(1, text_dim, generator=generator), shard_bytes=2000)
    for number in range(samples):
        size = sizes[number % len(sizes)]
        means = torch.randn(channels, *size, generator=generator)
        latents = torch.cat([means, 0.1 + torch.rand(means.shape, generator=generator)]) if kind == "moments" else means
        text = torch.randn(1 + number % 3, text_dim, generator=generator)
        condition = image = None
        if manifest.condition_channels:
            condition = torch.randn(manifest.condition_channels, *size, generator=generator)
        if manifest.image_dim:
            image = torch.randn(3, manifest.image_dim, generator=generator)
        others = [torch.randn(channels, 1, *each, generator=generator) for each in references[number % len(references)]]
        sample = CachedSample(latents, text, condition, image, tuple(others))
        writer.add(sample, source=f"media-{number}.png", caption=f"caption {number}")
    writer.publish()
    return folder


def loaded_run(output: Path, model: Path, cache: Path | None, *overrides: str):
    """A run's configuration as loaded, its faults with it."""
    settings = [
        f"output={output}",
        f"model={model}",
        *([f"data={cache}"] if cache else []),
        "device=cpu",
        "train.steps=4",
        "train.global_batch_size=4",
        "train.micro_batch_size=2",
        "train.lr=1e-3",
        "train.ema.decay=0.9",
        "flow.shift=2.0",
        "logging.every=100",
    ]
    return load_run(DiffusionTrainingConfig, None, [*settings, *overrides])


def run_toy(output: Path, model: Path, cache: Path | None, *overrides: str):
    """Train, in this process or as a rank of the pool, which is in a process group already; returns the progress."""
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    config = checked(loaded_run(output, model, cache, *overrides), world_size)
    if not dist.is_initialized():
        return train_diffusion(config)
    place = RankPlace(rank=dist.get_rank(), local_rank=dist.get_rank(), world_size=world_size, started=True)
    with (
        patch.object(run_module, "initialise_from_env", lambda device, **more: (place, torch.device("cpu"))),
        patch.object(run_module, "leave", lambda: None),
    ):
        return train_diffusion(config)
