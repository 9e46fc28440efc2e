"""A policy's folder: what is written is read again, openpi's names are understood, lerobot's key list is complete."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from policy_toys import toy_policy_config, toy_statistics, toy_trained_folder
from safetensors.torch import load_file, save_file

from loong_core.errors import ConfigError, UserError
from loong_core.parallel.context import ParallelContext
from loong_vla.convert import convert_policy
from loong_vla.data.recordings import ACTION, STATE
from loong_vla.families.pi.config import PiConfig
from loong_vla.families.pi.model import PiPolicy
from loong_vla.families.pi.weights import EXPERT_HEAD, HEAD, TABLE, idle_tensors, pi_weight_map
from loong_vla.lerobot_folder.policy_folder import open_policy

CONTEXT = ParallelContext.single()


@pytest.fixture(scope="module", params=["pi0", "pi05"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp(request.param) / "pretrained_model"
    return toy_trained_folder(target, toy_policy_config(request.param))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    opened = open_policy(folder)
    policy = PiPolicy(opened.config)
    opened.load(policy, CONTEXT)
    return dict(policy.state_dict())


def test_configuration_statistics_and_weights_come_back(folder: Path) -> None:
    opened = open_policy(folder)
    kind = opened.config.kind
    assert opened.config == toy_policy_config(kind, normalization=opened.config.normalization)
    for feature in (STATE, ACTION):
        for name, values in toy_statistics()[feature].items():
            np.testing.assert_allclose(opened.statistics_of()[feature][name], values, rtol=1e-6)
    assert all(torch.isfinite(each).all() for each in weights_of(folder).values())


def test_the_file_has_each_of_lerobots_tensors_but_the_second_copy_of_the_table(folder: Path) -> None:
    opened = open_policy(folder)
    stored = set(load_file(folder / "model.safetensors"))
    depth = opened.config.sizes.language.depth
    assert stored == set(pi_weight_map(opened.config).tensors(depth)) | set(idle_tensors(opened.config))
    assert f"model.{HEAD}" in stored
    assert f"model.{TABLE}" not in stored


def test_files_of_lerobots_config_are_those_it_reads(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["type"] in ("pi0", "pi05")
    assert config["dtype"] == "float32"
    assert "torch_dtype" not in config
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        steps = json.loads((folder / name).read_text())["steps"]
        for state in (step["state_file"] for step in steps if "state_file" in step):
            assert (folder / state).is_file()


def test_openpis_names_are_read_and_converted(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "openpi"
    source.mkdir()
    for name in ("config.json", "sizes.json"):
        (source / name).write_bytes((folder / name).read_bytes())
    tensors = load_file(folder / "model.safetensors")
    save_file({name.removeprefix("model."): each for name, each in tensors.items()}, source / "model.safetensors")
    with pytest.raises(UserError, match="has no statistics: give the dataset"):
        convert_policy(source, tmp_path / "out", tokenizer="bytes")
    for own, read in zip(weights_of(folder).values(), weights_of(source).values(), strict=True):
        torch.testing.assert_close(own, read, rtol=0, atol=0)


def test_a_file_with_the_table_beside_the_head_is_read_by_the_table(folder: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    both.mkdir()
    for name in ("config.json", "sizes.json"):
        (both / name).write_bytes((folder / name).read_bytes())
    tensors = load_file(folder / "model.safetensors")
    tensors[f"model.{TABLE}"] = tensors[f"model.{HEAD}"] + 1
    save_file(tensors, both / "model.safetensors")
    difference = weights_of(both)["embedding.weight"] - weights_of(folder)["embedding.weight"]
    torch.testing.assert_close(difference, torch.ones_like(difference))


def test_what_training_does_not_touch_is_handed_on(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    marked = tmp_path / "marked"
    marked.mkdir()
    for file in folder.iterdir():
        (marked / file.name).write_bytes(file.read_bytes())
    idle = idle_tensors(open_policy(folder).config)
    tensors |= {name: torch.full(shape, 7.0) for name, shape in idle.items()}
    save_file(tensors, marked / "model.safetensors")
    convert_policy(marked, tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert all((written[name] == 7).all() for name in idle)


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_full_size_key_lists_are_those_published(kind: str) -> None:
    golden = json.loads((Path(__file__).parent / "lerobot_keys.json").read_text())[kind]
    config = PiConfig(kind=kind, cameras=("observation.images.a",), state_dim=8, action_dim=7)  # type: ignore[arg-type]
    ours = pi_weight_map(config).tensors(config.sizes.language.depth) | idle_tensors(config)
    with torch.device("meta"):
        policy = PiPolicy(config)
    depth = config.sizes.language.depth
    own = sum(each.numel() for each in policy.parameters())
    assert own == sum(int(torch.tensor(shape).prod()) for shape in pi_weight_map(config).tensors(depth).values())
    expected = {name: tuple(shape) for name, shape in expand(golden).items() if name != f"model.{TABLE}"}
    assert ours == expected
    assert ours[f"model.{EXPERT_HEAD}"] == (257152, 1024)


def expand(golden: dict[str, dict[str, object]]) -> dict[str, list[int]]:
    """The recorded list, in which `*` stands for each of a number of layers."""
    found: dict[str, list[int]] = {}
    for pattern, entry in golden.items():
        layers: int = entry.get("layers", 0)  # type: ignore[assignment]
        shape: list[int] = entry["shape"]  # type: ignore[assignment]
        for name in [pattern.replace("*", str(n)) for n in range(layers)] if layers else [pattern]:
            found[name] = shape
    return found


def test_a_policy_that_is_not_served_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"type": "act"}))
    with pytest.raises(ConfigError, match=r"type is 'act' .*pi0, pi05 are served here"):
        open_policy(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps({"type": "pi05", "use_relative_actions": True, "input_features": {}, "output_features": {}})
    )
    with pytest.raises(ConfigError, match="3 faults") as told:
        open_policy(tmp_path)
    assert "use_relative_actions is True (only False is served)" in str(told.value)
    assert "input_features has no observation.state" in str(told.value)
