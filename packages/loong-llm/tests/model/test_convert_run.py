"""Checkpoints of a run become Hugging Face folders."""

from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import load_file
from toy_models import SMALL, randomise

from loong_core.checkpoint.pieces import StatePiece
from loong_core.checkpoint.resume import Checkpointer
from loong_core.errors import UserError
from loong_core.parallel.context import ParallelContext
from loong_llm.convert import convert
from loong_llm.model import build_stages, open_model

OVERRIDES = SMALL | {"head_dim": 8, "vocab_size": 300}
ONE = ParallelContext.single()


def engine_of(source, step):
    """What a checkpointer asks of an engine: weights drawn for this step, with a moment of each."""
    (model,) = build_stages(source, ONE)
    randomise(model, step)
    pieces = [
        StatePiece(kind, piece, part)
        for parameter, placement in source.weight_map.placements(model, ONE)
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True)
        for kind in ("weight", "exp_avg")
    ]
    device = SimpleNamespace(name="cpu", random_state=lambda: torch.zeros(4, dtype=torch.uint8))
    return SimpleNamespace(state_pieces=lambda: iter(pieces), updates=step, device=device), model


@pytest.fixture
def run(tmp_path):
    """The folder of a bf16 run with two checkpoints, and the weights of each."""
    root = tmp_path / "run"
    root.mkdir()
    settings = {"model": {"source": "qwen3-0.6b", "overrides": OVERRIDES}, "tokenizer": "bytes", "precision": "bf16"}
    (root / "run.yaml").write_text(yaml.safe_dump(settings))
    source = open_model("qwen3-0.6b", OVERRIDES)
    checkpointer = Checkpointer(root / "checkpoints", keep=None, asynchronous=False)
    models = {}
    for step in (5, 10):
        engine, models[step] = engine_of(source, step)
        checkpointer.save(step, engine, {})
    return root, models


@pytest.mark.parametrize(("step", "expected"), [(None, 10), (5, 5)])
def test_the_last_checkpoint_or_the_one_asked_for_is_written_in_the_run_s_precision(run, tmp_path, step, expected):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    root, models = run
    convert(root, tmp_path / "out", step=step)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert theirs.dtype == torch.bfloat16
    table = models[expected].embedding.weight.to(torch.bfloat16)
    assert torch.equal(theirs.model.embed_tokens.weight, table)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs.config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer("loong")["input_ids"], skip_special_tokens=True) == "loong"


def test_a_checkpoint_s_own_folder_may_be_named_and_its_full_precision_kept(run, tmp_path):
    root, models = run
    convert(root / "checkpoints/step-00000005", tmp_path / "out", dtype="float32")
    stored = load_file(tmp_path / "out/model.safetensors")
    assert torch.equal(stored["model.norm.weight"], models[5].norm.weight)


def test_a_step_that_is_not_there_brings_those_that_are(run, tmp_path):
    with pytest.raises(UserError, match="has no checkpoint of step 7; it has 5, 10"):
        convert(run[0], tmp_path / "out", step=7)


def test_a_damaged_checkpoint_is_refused(run, tmp_path):
    file = run[0] / "checkpoints/step-00000010/rank-00000.safetensors"
    with file.open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\xff")
    with pytest.raises(UserError, match=r"rank-00000\.safetensors is damaged"):
        convert(run[0], tmp_path / "out")


def test_a_run_without_a_checkpoint_is_told_so(tmp_path):
    (tmp_path / "run.yaml").write_text("model: {}")
    with pytest.raises(UserError, match="has no checkpoint yet"):
        convert(tmp_path, tmp_path / "out")
