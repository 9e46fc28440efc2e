"""The two files that tell lerobot what to do before and after a Pi policy, and the statistics that they need.

lerobot's `--policy.path` reads `policy_preprocessor.json` and `policy_postprocessor.json`; a step with tensors names a
file for them, `policy_preprocessor_step_NUMBER_STEP.safetensors`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from loong_core.errors import UserError
from loong_vla.data.recordings import ACTION, STATE
from loong_vla.data.statistics import EPS, FeatureStatistics
from loong_vla.families.pi.config import PiConfig

PREPROCESSOR = "policy_preprocessor.json"
POSTPROCESSOR = "policy_postprocessor.json"
NORMALISING = ("normalizer_processor", "unnormalizer_processor")


def write_processors(folder: Path, config: PiConfig, statistics: FeatureStatistics, tokenizer: str) -> None:
    """Write both files and their statistics.

    Args:
        folder: where to.
        config: the policy.
        statistics: of state and action.
        tokenizer: what `AutoTokenizer.from_pretrained` takes.
    """
    described = config.to_json()
    features = described["input_features"] | described["output_features"]
    modes = described["normalization_mapping"]
    normalise = {"eps": EPS, "features": features, "norm_map": modes}
    outputs = normalise | {"features": described["output_features"]}
    relative = {"enabled": False, "exclude_joints": ["gripper"], "action_names": None}
    to_device = step_entry("device_processor", device="cpu", float_dtype=None)
    tokenize = step_entry(
        "tokenizer_processor",
        max_length=config.tokenizer_max_length,
        task_key="task",
        padding_side="right",
        padding="max_length",
        truncation=True,
        tokenizer_name=tokenizer,
    )
    first = [step_entry("rename_observations_processor", rename_map={}), step_entry("to_batch_processor")]
    normalising = [
        step_entry("relative_actions_processor", **relative),
        step_entry("normalizer_processor", **normalise),
    ]
    if config.state_in_prompt:
        prompt = step_entry("pi05_prepare_state_tokenizer_processor_step")
        steps = [*first, *normalising, prompt, tokenize, to_device]
    else:
        steps = [*first, step_entry("pi0_new_line_processor"), tokenize, to_device, *normalising]
    after = [
        step_entry("unnormalizer_processor", **outputs),
        step_entry("absolute_actions_processor", enabled=False),
        to_device,
    ]
    tensors = {
        f"{feature}.{name}": np.asarray(values, np.float32)
        for feature, entry in statistics.items()
        for name, values in entry.items()
    }
    write_steps(folder, PREPROCESSOR, steps, tensors, NORMALISING)
    write_steps(folder, POSTPROCESSOR, after, tensors, NORMALISING)


def read_statistics_of(folder: Path, keeper: str = "normalizer_processor") -> FeatureStatistics:
    """The statistics that a folder's preprocessor normalises by; empty where there is none.

    Args:
        folder: the policy's.
        keeper: name of the step that keeps them.

    Raises:
        UserError: the files are damaged.
    """
    file = folder / PREPROCESSOR
    if not file.is_file():
        return {}
    try:
        steps = json.loads(file.read_text(encoding="utf-8"))["steps"]
        state = next((each.get("state_file") for each in steps if each["registry_name"] == keeper), None)
        tensors = {} if state is None else load_file(folder / Path(state).name)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"{file} cannot be read: {type(error).__name__}: {error}") from error
    found: FeatureStatistics = {}
    for name, values in tensors.items():
        feature, _, statistic = name.rpartition(".")
        if feature in (STATE, ACTION):
            found.setdefault(feature, {})[statistic] = np.atleast_1d(values.astype(np.float64))
    return found


def tokenizer_name(folder: Path) -> str | None:
    """What a folder's preprocessor says its tokenizer is called."""
    file = folder / PREPROCESSOR
    if not file.is_file():
        return None
    try:
        steps = json.loads(file.read_text(encoding="utf-8"))["steps"]
        return next((s["config"]["tokenizer_name"] for s in steps if s["registry_name"] == "tokenizer_processor"), None)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} cannot be read: {type(error).__name__}: {error}") from error


def step_entry(name: str, **config: Any) -> dict[str, Any]:
    """A step of a processor, by the name that lerobot registers it under."""
    return {"registry_name": name, "config": config}


def write_steps(
    folder: Path,
    name: str,
    steps: list[dict[str, Any]],
    tensors: Mapping[str, np.ndarray],
    with_tensors: Collection[str],
) -> None:
    """Write a processor's file, and the tensors beside it of those steps that keep some.

    Args:
        folder: where to.
        name: of the file.
        steps: as `step_entry` gives them.
        tensors: by `feature.statistic`.
        with_tensors: names of the steps that keep them.
    """
    written = []
    for number, step in enumerate(steps):
        if step["registry_name"] in with_tensors:
            file = f"{name.removesuffix('.json')}_step_{number}_{step['registry_name']}.safetensors"
            save_file(dict(tensors), folder / file)
            step = step | {"state_file": file}
        written.append(step)
    text = json.dumps({"name": name.removesuffix(".json"), "steps": written}, indent=2)
    (folder / name).write_text(text + "\n", encoding="utf-8")
