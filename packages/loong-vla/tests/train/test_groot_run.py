"""The commands on GR00T: from a dataset to a policy that acts, on two ranks, stopped and resumed, with faults told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from groot_policy_case import write_tokenizer
from policy_toys import toy_groot_config, toy_groot_folder, toy_groot_run, toy_run
from robot_toys import toy_dataset
from safetensors.torch import load_file

from loong_core.config import load_run
from loong_core.errors import UserError
from loong_core.nn.name_patterns import chosen
from loong_vla.check import check_run
from loong_vla.families.groot.weights import groot_weight_map
from loong_vla.policy_runner import PolicyRunner
from loong_vla.recipes.policy_model import open_policy_source
from loong_vla.recipes.training_config import PolicyTrainingConfig

BACKBONE = "_groot_model.backbone.*"
DROPPING = {"diffusion_model_cfg": toy_groot_config().model["diffusion_model_cfg"] | {"dropout": 0.2}}


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loong_vla.cli.main", *arguments], capture_output=True, text=True, timeout=300
    )


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def mixture(folder: Path) -> list[dict[str, Any]]:
    """Two robots, the second with shorter actions, in shares of three to one."""
    toy_dataset(folder / "dataset")
    toy_dataset(folder / "other", action_dim=2)
    return [
        {"path": str(folder / "dataset"), "embodiment": "arm", "weight": 3.0},
        {"path": str(folder / "other"), "embodiment": "leg", "weight": 1.0},
    ]


def faults(folder: Path, **changes: Any) -> str:
    found = check_run(load_run(PolicyTrainingConfig, toy_groot_run(folder, **changes)), 1)
    return "\n".join(map(str, found.faults))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from beginning to end, by the command: two robots, dropout, averages of weights."""
    folder = tmp_path_factory.mktemp("straight")
    run = toy_groot_run(
        folder,
        data__train=mixture(folder),
        data__augmentation={},
        model={"source": str(folder / "policy"), "overrides": DROPPING},
        train__ema={"decay": 0.5},
        checkpoint__export_every=2,
        recompute={"blocks": 2},
    )
    done = command("train", str(run))
    assert done.returncode == 0, done.stderr
    assert "recompute: 2 modules" in done.stdout + done.stderr
    return folder


def test_a_run_leaves_a_policy_that_acts_for_each_of_its_robots(straight: Path) -> None:
    assert len(losses(straight / "run")) == 4
    assert all(np.isfinite(losses(straight / "run")))
    folder = straight / "run" / "pretrained_model"
    for robot, width in (("arm", 3), ("leg", 2)):
        runner = PolicyRunner(folder, device="cpu", embodiment=robot)
        pictures = {camera: np.zeros((32, 32, 3), np.uint8) for camera in runner.config.cameras}
        actions = runner.act([pictures], [np.zeros(4, np.float32)], ["task 0"])
        assert actions.shape == (1, 4, width)
        assert np.isfinite(actions).all()
    (early,) = (straight / "run" / "exports").glob("*/config.json")
    assert PolicyRunner(early.parent, device="cpu").embodiment == "arm"
    bank = load_file(folder / "model.safetensors")["_groot_model.action_head.action_encoder.W1.W"]
    assert [bool(each.any()) for each in bank] == [False, True, False, False, False, True]
    with pytest.raises(UserError, match="knows no 'new_embodiment'; it was trained on arm, leg"):
        PolicyRunner(folder, device="cpu", embodiment="new_embodiment")


def test_two_ranks_and_a_run_that_was_stopped_take_the_same_steps(straight: Path, tmp_path: Path) -> None:
    run = straight / "run.yaml"
    output = f"output={tmp_path / 'ranks'}"
    assert command("train", str(run), output, "train.stop_at=2").returncode == 0
    done = command("train", str(run), output, "--nproc", "2")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(losses(tmp_path / "ranks"), losses(straight / "run"), rtol=2e-5)


def test_a_frozen_backbone_is_handed_on_as_it_was(straight: Path, tmp_path: Path) -> None:
    before = straight / "run" / "pretrained_model"
    run = toy_groot_run(
        tmp_path, model=str(before), data__train=mixture(tmp_path), train__freeze=[BACKBONE], train__steps=2
    )
    done = command("train", str(run))
    assert done.returncode == 0, done.stderr
    assert "parameters are trained" in done.stdout + done.stderr
    old, new = (load_file(each / "model.safetensors") for each in (before, tmp_path / "run" / "pretrained_model"))
    changed = {name for name in old if not old[name].equal(new[name])}
    assert changed
    assert not [name for name in changed if ".backbone." in name]


def test_adapters_are_merged_into_the_policy_that_is_written_on_any_number_of_ranks(
    straight: Path, tmp_path: Path
) -> None:
    before = straight / "run" / "pretrained_model"
    lora = {"rank": 2, "targets": ["q_proj", "linear_fc1"], "beside": ["action_decoder.*"]}
    run = str(toy_groot_run(tmp_path, model=str(before), data__train=mixture(tmp_path), lora=lora, train__steps=2))
    for ranks in (1, 2):
        done = command("train", run, f"output={tmp_path / str(ranks)}", "--nproc", str(ranks))
        assert done.returncode == 0, done.stderr
    old = load_file(before / "model.safetensors")
    one, two = (load_file(tmp_path / ranks / "pretrained_model" / "model.safetensors") for ranks in "12")
    changed = {name for name in old if not old[name].equal(one[name])}
    assert {name.rsplit(".", 2)[-2] for name in changed if ".backbone." in name} == {"q_proj", "linear_fc1"}
    assert all(".action_decoder." in name for name in changed if ".backbone." not in name)
    name = "_groot_model.backbone.model.model.language_model.layers.1.self_attn.q_proj.weight"
    assert np.linalg.matrix_rank((one[name] - old[name]).numpy(), tol=1e-6) == 2
    for key, values in one.items():
        np.testing.assert_allclose(two[key].numpy(), values.numpy(), rtol=1e-3, atol=2e-5, err_msg=key)


def test_adapters_where_there_is_no_place_for_them_or_beside_what_they_would_ignore(tmp_path: Path) -> None:
    assert "train.freeze: would be ignored: lora says what is trained" in faults(
        tmp_path, lora={}, train__freeze=["visual.*"]
    )
    (tmp_path / "pi").mkdir()
    found = check_run(load_run(PolicyTrainingConfig, toy_run(tmp_path / "pi", lora={})), 1)
    assert "lora: puts adapters on a policy, and pi05 takes none" in str(found.faults[0])


def test_patterns_that_choose_nothing_are_all_told_before_any_weight_is_read(tmp_path: Path) -> None:
    told = faults(tmp_path, train__freeze=["visual.*", "vision.*"], recompute={"modules": ["backbone.eye"]})
    assert "train.freeze: 'vision.*' matches nothing" in told
    assert "recompute.modules: 'backbone.eye' matches nothing" in told
    assert "lora.targets: 'to_q' matches nothing" in faults(tmp_path, lora={"targets": ["to_q"]})
    assert "lora.beside: 'head.*' matches nothing" in faults(tmp_path, lora={"beside": ["head.*"]})


TUNED = {
    "tune_llm": (["language_model.*", "backbone.model.lm_head"], ("backbone.model.model.language_model.",)),
    "tune_visual": (["visual.*"], ("backbone.model.model.visual.",)),
    "tune_projector": (
        ["state_encoder.*", "action_encoder.*", "action_decoder.*", "position_embedding"],
        ("action_head.state_encoder.", "action_head.action_", "action_head.position_embedding."),
    ),
    "tune_diffusion_model": (["action_head.model.*"], ("action_head.model.",)),
    "tune_vlln": (["vlln", "vl_self_attention.*"], ("action_head.vlln.", "action_head.vl_self_attention.")),
}
"""lerobot's flags: the patterns that freeze what each is about, and how the names of that begin."""


@pytest.mark.parametrize("flag", TUNED)
def test_lerobots_flags_have_patterns_that_freeze_the_same(flag: str) -> None:
    patterns, beginnings = TUNED[flag]
    config = toy_groot_config()
    names = groot_weight_map(config).tensors(config.num_layers)
    about = {name for name in names if name.removeprefix("_groot_model.").startswith(beginnings)}
    if flag == "tune_llm":
        about.add("_groot_model.backbone.model.lm_head.weight")
    assert chosen(names, patterns, "train.freeze") == about


EXAMPLES = Path(__file__).parents[4] / "examples" / "vla"


@pytest.mark.parametrize("name", sorted(file.name for file in EXAMPLES.glob("*.yaml")))
def test_examples_are_run_files(name: str) -> None:
    loaded = load_run(PolicyTrainingConfig, EXAMPLES / name)
    assert loaded.faults == []
    told = [fault.where for fault in check_run(loaded, 8).faults]
    # What is not on this machine is all that is wrong with them.
    assert told
    assert all(where.startswith(("model", "data.train", "tokenizer", "device", "precision")) for where in told)


def test_a_sound_run_has_no_faults_and_is_described(tmp_path: Path) -> None:
    found = check_run(load_run(PolicyTrainingConfig, toy_groot_run(tmp_path)), 1)
    assert found.faults == []
    assert found.facts["policy"].startswith("groot, 4 actions of 3 numbers at once")
    assert found.facts["normalised"] == "state by QUANTILES, action by QUANTILES"


def test_a_folder_of_nvidias_needs_to_be_told_the_robot(tmp_path: Path) -> None:
    nvidia, config = tmp_path / "policy", toy_groot_config()
    write_tokenizer(nvidia)
    told = dict(config.model) | {"shortest_image_edge": None, "color_jitter_params": None}
    (nvidia / "config.json").write_text(json.dumps(told))
    (nvidia / "embodiment_id.json").write_text(json.dumps(dict(config.ids)))
    told_faults = faults(tmp_path)
    assert "input_features names no camera (set model.overrides.input_features and output_features" in told_faults
    assert "no feature action is told" in told_faults
    robot = {key: config.to_json()[key] for key in ("input_features", "output_features")}
    model = {"source": str(nvidia), "overrides": robot | {"n_action_steps": 2, "num_inference_timesteps": 7}}
    assert faults(tmp_path, model=model) == ""
    opened = open_policy_source(load_run(PolicyTrainingConfig, toy_groot_run(tmp_path, model=model)).config)
    assert opened.config.head.inference_steps == 7
    assert opened.config.n_action_steps == 2


def test_an_embodiment_that_the_model_does_not_have(tmp_path: Path) -> None:
    toy_dataset(tmp_path / "dataset")
    told = faults(tmp_path, data__train=[{"path": str(tmp_path / "dataset"), "embodiment": "harm"}])
    assert (
        "data.train.0.embodiment: the policy has no embodiment 'harm' (did you mean arm? known: new_embodiment" in told
    )
    untold = {"source": str(tmp_path / "policy"), "overrides": {"embodiment_tag": "nobody"}}
    told = faults(tmp_path, model=untold)
    assert "data.train.0.embodiment: the policy has no embodiment 'nobody'" in told


def test_a_tokenizer_without_marks_of_vision(tmp_path: Path) -> None:
    run = toy_groot_run(tmp_path)
    run.write_text(run.read_text().replace("tokenizer: null", "tokenizer: bytes"))
    found = check_run(load_run(PolicyTrainingConfig, run), 1)
    assert "tokenizer: the tokenizer" in str(found.faults[0])
    assert "no token <|image_pad|>" in str(found.faults[0])


def test_states_and_actions_wider_than_the_model(tmp_path: Path) -> None:
    toy_dataset(tmp_path / "dataset", action_dim=6)
    assert "has actions of 6 numbers, the policy takes 5 at most" in faults(tmp_path)


def test_a_horizon_longer_than_the_models_and_a_key_that_there_is_not(tmp_path: Path) -> None:
    toy_groot_folder(tmp_path / "policy", toy_groot_config(chunk_size=9))
    assert "chunk_size is 9, the model's action_horizon 4 (lower it)" in faults(tmp_path)
    model = {"source": str(tmp_path / "policy"), "overrides": {"select_layers": 2}}
    assert "model.overrides.select_layers: is no key of the policy (did you mean select_layer?)" in faults(
        tmp_path, model=model
    )
