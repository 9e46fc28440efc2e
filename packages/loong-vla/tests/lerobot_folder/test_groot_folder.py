"""A GR00T policy's folder: what is written is read again, and embodiments that were not held are handed on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from policy_toys import toy_groot_config, toy_statistics, toy_trained_groot
from safetensors.torch import load_file, save_file

from loong_core.errors import ConfigError
from loong_core.parallel.context import ParallelContext
from loong_vla.convert import convert_policy
from loong_vla.data.recordings import ACTION, STATE
from loong_vla.families.groot.policy import GrootPolicy
from loong_vla.families.groot.policy_config import GrootConfig, published
from loong_vla.families.groot.weights import groot_weight_map, handed_on, initialise_groot
from loong_vla.lerobot_folder.policy_folder import open_policy

CONTEXT = ParallelContext.single()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = toy_groot_config().for_embodiments(["arm", "leg"])
    return toy_trained_groot(tmp_path_factory.mktemp("groot") / "pretrained_model", config)


def test_configuration_statistics_and_weights_come_back(folder: Path) -> None:
    opened = open_policy(folder)
    config = toy_groot_config().for_embodiments(["arm", "leg"])
    assert opened.config == toy_groot_config(embodiment="arm")
    assert list(opened.statistics) == ["arm", "leg"]
    for feature in (STATE, ACTION):
        for name, values in toy_statistics()[feature].items():
            np.testing.assert_allclose(opened.statistics_of("leg")[feature][name], values, rtol=1e-6)
    expected, loaded = GrootPolicy(config), GrootPolicy(config)
    initialise_groot(expected, config, CONTEXT, 0)
    replace(opened, config=config).load(loaded, CONTEXT)
    for name, values in expected.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], values), name


def test_the_file_holds_every_bank_whole_and_what_was_not_held_is_handed_on(folder: Path, tmp_path: Path) -> None:
    every = toy_groot_config(held=("new_embodiment", "arm", "leg"))
    marked = tmp_path / "marked"
    marked.mkdir()
    for file in folder.iterdir():
        (marked / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    assert set(tensors) == set(groot_weight_map(every).tensors(6)) | {each.name for each in handed_on(every)}
    name = "_groot_model.action_head.state_encoder.layer1.W"
    assert tensors[name].shape[0] == 6
    assert tensors[name][1].any()
    assert not tensors[name][3].any()
    tensors[name][3] = 7.0
    save_file(tensors, marked / "model.safetensors")
    again = toy_trained_groot(tmp_path / "again", toy_groot_config().for_embodiments(["leg"]), marked, seed=1)
    bank = load_file(again / "model.safetensors")[name]
    assert (bank[3] == 7).all()
    assert torch.equal(bank[1], tensors[name][1])
    assert not torch.equal(bank[5], tensors[name][5])


def test_processors_tell_lerobot_the_range_of_the_first_embodiment(folder: Path) -> None:
    before = json.loads((folder / "policy_preprocessor.json").read_text())["steps"]
    names = [step["registry_name"] for step in before]
    assert names == [
        "rename_observations_processor", "to_batch_processor", "groot_n1_7_pack_inputs_v1", "groot_n1_7_vlm_encode_v1",
        "device_processor",
    ]  # fmt: skip
    kept = load_file(folder / before[2]["state_file"])
    np.testing.assert_allclose(kept["action.max"], toy_statistics()[ACTION]["q99"], rtol=1e-6)
    assert before[2]["config"]["embodiment_tag"] == "arm"
    assert before[2]["config"]["video_modality_keys"] == ["top", "wrist"]
    (folder / "embodiments.json").rename(folder / "kept.json")
    try:
        found = open_policy(folder).statistics_of("arm")[ACTION]
    finally:
        (folder / "kept.json").rename(folder / "embodiments.json")
    np.testing.assert_allclose(found["q99"], toy_statistics()[ACTION]["q99"], rtol=1e-6)


def test_nvidias_names_are_read_and_converted(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "nvidia"
    source.mkdir()
    for file in folder.iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    plain = {name.removeprefix("_groot_model."): each for name, each in tensors.items()}
    head = "backbone.model.lm_head.weight"
    plain["backbone.model.model.language_model.embed_tokens.weight"] = plain[head] + 0.0
    plain[head] = plain[head] + 1.0  # means nothing beside the table
    save_file(plain, source / "model.safetensors")
    convert_policy(source, tmp_path / "out")
    back = load_file(tmp_path / "out" / "model.safetensors")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_full_size_key_list_is_lerobots() -> None:
    golden = expanded(json.loads((Path(__file__).parent / "lerobot_groot_keys.json").read_text()))
    full = GrootConfig(version="n1.7", cameras=("observation.images.a",), state_dim=8, action_dim=7,
                       model=published("n1.7"), held=("new_embodiment",))  # fmt: skip
    ours = groot_weight_map(full).tensors(full.num_layers)
    ours |= {each.name: each.global_shape for each in handed_on(full)}
    table = "_groot_model.backbone.model.model.language_model.embed_tokens.weight"
    assert ours == {name: shape for name, shape in golden.items() if name != table}
    with torch.device("meta"):
        policy = GrootPolicy(full)
    assert sum(each.numel() for each in policy.parameters()) == 3_144_016_000 - 2048 - banks_left_out(full)


def expanded(golden: dict[str, dict[str, list[int]]]) -> dict[str, tuple[int, ...]]:
    """The recorded list, in which `*` stands for each of some numbers."""
    found: dict[str, tuple[int, ...]] = {}
    for pattern, shapes in golden.items():
        for told, numbers in shapes.items():
            shape = tuple(int(each) for each in told.split(",") if each)
            for name in [pattern.replace("*", str(n)) for n in numbers] if numbers else [pattern]:
                found[name] = shape
    return found


def banks_left_out(config: GrootConfig) -> int:
    return sum(int(np.prod(each.sizes)) for each in handed_on(config)[1:])


def test_what_is_not_served_is_told_at_once(tmp_path: Path) -> None:
    told = toy_groot_config().to_json() | {"use_relative_actions": True, "action_decode_transform": "libero"}
    (tmp_path / "config.json").write_text(json.dumps(told))
    with pytest.raises(ConfigError, match="2 faults") as error:
        open_policy(tmp_path)
    assert "use_relative_actions is True (only False is served)" in str(error.value)
    assert "action_decode_transform is 'libero'" in str(error.value)
