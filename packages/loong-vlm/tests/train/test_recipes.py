"""Every recipe of examples/vlm is a run without faults, and the layout of the large one fits by its plan."""

import shutil
from pathlib import Path

import pytest
from digit_runs import run_config, write_parts
from typer.testing import CliRunner

from loong_core.config import load_run
from loong_vlm.check import check_run
from loong_vlm.cli.main import app
from loong_vlm.recipes.fine_tuning import fine_tune
from loong_vlm.recipes.training_config import VisionTrainingConfig

EXAMPLES = Path(__file__).parents[4] / "examples" / "vlm"
STAGES = {"align": "align", "pretrain": "full", "sft": "full", "lora_language": "full", "lora_tower": "full"}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """What the recipes name, small: parts, data, and the folder of a run."""
    folder = tmp_path_factory.mktemp("root")
    write_parts(folder)
    few = {"steps": 1, "global_batch_size": 1, "warmup_steps": 0}
    fine_tune(run_config(folder, folder / "run", train=few))
    for name in ("captions", "interleaved"):
        (folder / "data" / name).mkdir()
        shutil.copy(folder / "data" / "train.jsonl", folder / "data" / name)
    for name in ("talk", "conversations"):
        shutil.copy(folder / "data" / "train.jsonl", folder / "data" / f"{name}.jsonl")
    return folder


def test_each_stage_has_a_recipe():
    assert {path.stem for path in (EXAMPLES / "stages").glob("*.yaml")} == set(STAGES)


@pytest.mark.parametrize("recipe", STAGES)
def test_a_recipe_has_no_faults(root, tmp_path, recipe):
    text = (EXAMPLES / "stages" / f"{recipe}.yaml").read_text()
    text = text.replace("/models/Qwen3-VL-8B-Instruct", str(root / "tower")).replace("/data/", f"{root}/data/")
    text = text.replace("/models/Qwen3-8B", str(root / "language"))
    (tmp_path / "run.yaml").write_text(text)
    own = [f"output={tmp_path / 'run'}", "device=cpu", "data.sequence_length=256"]
    if recipe != "align":
        own.append(f"model={root / 'run' / 'hf'}")
    found = check_run(load_run(VisionTrainingConfig, tmp_path / "run.yaml", own), 8)
    assert [str(fault) for fault in found.faults] == []
    assert found.facts["stage"] == STAGES[recipe]
    assert ("adapters" in found.facts) == recipe.startswith("lora")
    assert found.facts["tower"].endswith(
        {"align": "frozen", "pretrain": "learning rate x 0.1", "sft": "frozen", "lora_tower": "adapted"}.get(
            recipe, "as it is"
        )
    )


def test_the_layout_of_the_large_recipe_fits_by_its_plan():
    told = CliRunner().invoke(app, ["plan", str(EXAMPLES / "qwen3_vl_30b_a3b.yaml"), "--gpus", "16", "--top", "1"])
    assert told.exit_code == 0
    (own,) = [line.split() for line in told.output.splitlines() if line.startswith("1*")]
    assert own[1:6] == ["1", "1", "4u4", "8", "4"]
