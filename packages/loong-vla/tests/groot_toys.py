"""The shrunken GR00T policy of the oracle in our form, and batches for it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from groot_policy_case import (
    ACTION_DIM,
    BACKBONE,
    CAMERAS,
    EMBODIMENTS,
    MODEL,
    STATE_DIM,
    TASKS,
    recorded,
    statistics,
    write_tokenizer,
)
from named_random import random_weight

from loong_core.parallel.context import ParallelContext
from loong_vla.data.recordings import ACTION, STATE
from loong_vla.data.samples import RobotSample
from loong_vla.data.statistics import Normaliser, Statistics, widened
from loong_vla.families.groot.batch import GrootBatch, GrootCollator
from loong_vla.families.groot.policy import GrootPolicy, prepared
from loong_vla.families.groot.policy_config import GrootConfig
from loong_vla.families.groot.weights import groot_weight_map

ALONE = ParallelContext.single()
NAMES = {f"robot {number}": number for number in range(6)}


def groot_config(**changes: Any) -> GrootConfig:
    """The policy that the oracle ran."""
    config = GrootConfig(
        version="n1.7",
        cameras=CAMERAS,
        state_dim=STATE_DIM,
        action_dim=ACTION_DIM,
        model=MODEL | {"backbone_config": BACKBONE},
        chunk_size=MODEL["action_horizon"],
        n_action_steps=MODEL["action_horizon"],
        embodiment="robot 2",
        ids=NAMES,
    )
    return replace(config, **changes)


def groot_policy(config: GrootConfig) -> GrootPolicy:
    """Float64, its weights drawn by lerobot's names."""
    policy = GrootPolicy(config).double()
    with torch.no_grad():
        for parameter, placement in groot_weight_map(config).placements(policy, ALONE):
            drawn = [random_weight(_drawn_as(each.name), each.global_shape)[each.slices] for each in placement.pieces]
            parameter.copy_(placement.to_local(drawn))
    return policy


def _drawn_as(name: str) -> str:
    """Of the text embedding the oracle draws the table last: the head is tied to it, and named first."""
    return name.replace("model.lm_head", "model.model.language_model.embed_tokens")


@cache
def tokenizer() -> Any:
    """The case's, as transformers opens it here."""
    from transformers import AutoTokenizer

    folder = Path(mkdtemp())
    write_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def normalisers() -> dict[str, Normaliser]:
    """Of states and actions, by the case's quantiles."""
    found = {}
    for feature in (STATE, ACTION):
        entry: Statistics = {name: np.array(values) for name, values in statistics()[feature].items()}
        found[feature] = Normaliser.of(widened(entry, "QUANTILES"), "QUANTILES", len(entry["q01"]), clips=True)
    return found


def samples() -> list[RobotSample]:
    """The case's samples, normalised."""
    given, normalise = recorded(), normalisers()
    return [
        RobotSample(
            {camera: given[camera][row].numpy() for camera in CAMERAS},
            normalise[STATE].normalise(given["state"][row].numpy()),
            normalise[ACTION].normalise(given["actions"][row].numpy()),
            given["inside"][row].numpy(),
            TASKS[row],
            f"robot {EMBODIMENTS[row]}",
            row,
        )
        for row in range(len(TASKS))
    ]


def groot_batch(config: GrootConfig, taken: list[RobotSample] | None = None) -> GrootBatch:
    """A prepared microbatch with the case's noise and times."""
    given = recorded()
    taken = samples() if taken is None else taken
    batch = GrootCollator(config, tokenizer(), seed=0)(taken)
    rows = [sample.number for sample in taken]
    acted = replace(batch.acted, noise=given["noise"][rows], time=given["time"][rows], keep_state=None)
    return prepared(replace(batch, acted=acted), config)
