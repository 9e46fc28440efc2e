"""A policy's folder rewritten: other names of weights to lerobot's, processors and statistics added."""

from __future__ import annotations

from pathlib import Path

import torch

from loong_core.checkpoint.pieces import StatePiece
from loong_core.errors import UserError
from loong_core.parallel.context import ParallelContext
from loong_vla.data.statistics_file import dataset_statistics
from loong_vla.lerobot_folder.policy_folder import open_policy, write_policy
from loong_vla.recipes.policy_model import build_policy, policy_source


def convert_policy(
    source: Path, target: Path, dtype: str = "float32", dataset: Path | None = None, tokenizer: str | None = None
) -> None:
    """Write a policy as lerobot's `pretrained_model/`.

    Args:
        source: its folder.
        target: the folder to write, which must not be there.
        dtype: of the weights, `float32` or `bfloat16`.
        dataset: whose statistics it gets; its own by default.
        tokenizer: a folder, or `bytes`; its own by default.

    Raises:
        UserError: the source is faulty or lacks what lerobot needs, or the target is taken.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists and is not empty: choose another folder or remove it")
    opened = open_policy(source)
    home = opened.config.home_embodiment
    statistics = {home: dataset_statistics(dataset)} if dataset is not None else opened.statistics
    if not statistics:
        raise UserError(f"{source} has no statistics: give the dataset it was trained on with --dataset")
    context = ParallelContext.single()
    kind = getattr(torch, dtype)
    chosen = policy_source(opened, tokenizer)
    policy = build_policy(chosen, context, initialise="weights", dtype=kind)
    pieces = (
        StatePiece("weight", piece, part)
        for parameter, placement in chosen.weight_map.placements(policy, context)
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True)
    )
    write_policy(target, opened.config, pieces, context, kind, statistics, chosen.tokenizer, opened)
