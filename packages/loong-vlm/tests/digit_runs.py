"""Runs of a few steps on the quickstart's model and data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from loong_vlm import quickstart as demo
from loong_vlm.recipes.training_config import VisionTrainingConfig

FEW = {"which": 12, "compare": 12, "sum": 12}


def write_parts(folder: Path) -> Path:
    """The quickstart's parts, with few questions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "TRAINED", FEW)
        patch.setattr(demo, "HELD_OUT", 4)
        demo.write_quickstart_parts(folder)
    return folder


def run_config(folder: Path, output: Path, **changes: Any) -> VisionTrainingConfig:
    """Four steps of two microbatches, with sections changed."""
    config = demo.quickstart_config(folder)
    few = {"steps": 4, "global_batch_size": 2, "micro_batch_size": 1, "warmup_steps": 1, "validate_every": None}
    train = config.train.model_copy(update=few | {"validation_steps": None} | changes.pop("train", {}))
    data = config.data.model_copy(update={"validation": []})
    every = config.checkpoint.model_copy(update={"every": 2})
    return config.model_copy(
        update={"output": str(output), "train": train, "data": data, "checkpoint": every} | changes
    )


def weights(output: Path) -> dict[str, Tensor]:
    """What a run left."""
    return load_file(output / "hf" / "model.safetensors")
