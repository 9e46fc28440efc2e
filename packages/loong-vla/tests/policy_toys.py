"""Folders of tiny policies, and run files that train them on the toy dataset."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from groot_policy_case import BACKBONE, MODEL, write_tokenizer
from robot_toys import TOP, WRIST, toy_dataset

from loong_core.checkpoint.pieces import StatePiece
from loong_core.parallel.context import ParallelContext
from loong_llm.tokenizer import load_tokenizer
from loong_vla.data.recordings import ACTION, STATE
from loong_vla.data.statistics import Statistics, compute_statistics
from loong_vla.families.groot.policy import GrootPolicy
from loong_vla.families.groot.policy_config import GrootConfig
from loong_vla.families.groot.weights import groot_weight_map, initialise_groot
from loong_vla.families.pi.config import GemmaSize, PiConfig, PiSizes, VisionSize
from loong_vla.families.pi.model import PiPolicy
from loong_vla.families.pi.weights import initialise_pi, pi_weight_map
from loong_vla.lerobot_folder.policy_folder import open_policy, write_policy
from loong_vla.lerobot_folder.sizes_file import write_sizes

STREAM = {"depth": 2, "heads": 8, "kv_heads": 1, "head_dim": 4}
SIZES = PiSizes(
    GemmaSize(width=16, mlp=24, **STREAM), GemmaSize(width=8, mlp=16, **STREAM), VisionSize(8, 16, 1, 2, 16), 259
)


def toy_policy_config(kind: str = "pi05", **changes: Any) -> PiConfig:
    """A policy for the toy dataset."""
    config = PiConfig(
        kind=kind,  # type: ignore[arg-type]
        cameras=(TOP, WRIST),
        state_dim=4,
        action_dim=3,
        sizes=SIZES,
        image_size=32,
        chunk_size=4,
        n_action_steps=2,
        max_state_dim=6,
        max_action_dim=5,
        num_inference_steps=2,
        tokenizer_max_length=64,
    )
    return replace(config, **changes)


def toy_policy_folder(folder: Path, config: PiConfig | None = None) -> Path:
    """A policy's folder without weights."""
    config = config or toy_policy_config()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.to_json()))
    write_sizes(folder, asdict(config.sizes))
    return folder


GROOT_IDS = {"new_embodiment": 3, "arm": 1, "leg": 5}


def toy_groot_config(**changes: Any) -> GrootConfig:
    """A GR00T policy for the toy dataset."""
    config = GrootConfig(
        version="n1.7",
        cameras=(TOP, WRIST),
        state_dim=4,
        action_dim=3,
        model=MODEL | {"backbone_config": BACKBONE},
        chunk_size=4,
        n_action_steps=2,
        ids=GROOT_IDS,
    )
    return replace(config, **changes)


def toy_groot_folder(folder: Path, config: GrootConfig | None = None) -> Path:
    """A GR00T policy's folder without weights."""
    config = config or toy_groot_config()
    sizes = config.sizes_json()
    assert sizes is not None
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config.to_json()))
    write_sizes(folder, sizes)
    return folder


def toy_trained_groot(folder: Path, config: GrootConfig, origin: Path | None = None, seed: int = 0) -> Path:
    """A GR00T policy's folder with drawn weights and statistics of the embodiments that it holds."""
    words, context = folder.with_name(f"{folder.name}-words"), ParallelContext.single()
    write_tokenizer(words)
    policy = GrootPolicy(config)
    initialise_groot(policy, config, context, seed)
    pieces = [
        StatePiece("weight", piece, part)
        for parameter, placement in groot_weight_map(config).placements(policy, context)
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True)
    ]
    statistics = {name: toy_statistics(config.state_dim, config.action_dim) for name in config.held}
    opened = None if origin is None else open_policy(origin)
    write_policy(folder, config, pieces, context, torch.float32, statistics, load_tokenizer(None, words), opened)
    return folder


def toy_groot_run(folder: Path, **changes: Any) -> Path:
    """A run file of a few steps of GR00T, as `toy_run`."""
    if not (folder / "policy").exists():
        toy_groot_folder(folder / "policy")
    return toy_run(folder, tokenizer=None, **changes)


def toy_statistics(state: int = 4, action: int = 3) -> dict[str, Statistics]:
    """Statistics of states and actions."""
    random = np.random.default_rng(3)
    return {
        STATE: compute_statistics(random.standard_normal((50, state)).astype(np.float32) * 3 + 1),
        ACTION: compute_statistics(random.standard_normal((50, action)).astype(np.float32) * 2 - 1),
    }


def toy_trained_folder(folder: Path, config: PiConfig | None = None) -> Path:
    """A policy's folder with drawn weights and statistics, as training leaves it."""
    config = config or toy_policy_config()
    context = ParallelContext.single()
    policy = PiPolicy(config)
    initialise_pi(policy, config, context, seed=0)
    pieces = [
        StatePiece("weight", piece, part)
        for parameter, placement in pi_weight_map(config).placements(policy, context)
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True)
    ]
    tokenizer = load_tokenizer("bytes")
    write_policy(
        folder,
        config,
        pieces,
        context,
        torch.float32,
        {"robot": toy_statistics(config.state_dim, config.action_dim)},
        tokenizer,
    )
    return folder


def toy_run(folder: Path, **changes: Any) -> Path:
    """A run file of a few steps; `changes` are dotted keys, with `__` for the dots."""
    dataset, policy = folder / "dataset", folder / "policy"
    if not dataset.exists():
        toy_dataset(dataset)
    if not policy.exists():
        toy_policy_folder(policy)
    run: dict[str, Any] = {
        "output": str(folder / "run"),
        "model": str(policy),
        "tokenizer": "bytes",
        "device": "cpu",
        "data": {"train": [str(dataset)]},
        "train": {"steps": 4, "global_batch_size": 4, "micro_batch_size": 2, "lr": 1e-3},
    }
    for key, value in changes.items():
        place: Any = run
        *parents, last = key.split("__")
        for parent in parents:
            place = place[int(parent)] if isinstance(place, list) else place.setdefault(parent, {})
        place[last] = value
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(run))
    return file
