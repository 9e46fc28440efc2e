"""Tasks of the lm-evaluation-harness get from our decoder what they get from transformers' model of the same folder."""

import json
import subprocess
import sys

import pytest
import torch
from text_toys import byte_model

from loong_core.errors import UserError
from loong_llm import harness
from loong_llm.harness import figures, run_tasks
from loong_llm.inference import open_for_inference

QUESTIONS = [
    {"question": "Which animal barks?", "choices": ["the dog", "the cat", "a fox that is quick"], "answer": 0},
    {"question": "What jumps over the lazy dog", "choices": ["é", "the quick brown fox"], "answer": 1},
    {"question": "a long question, " * 12, "choices": ["yes ", "no"], "answer": 1},
    {"question": "", "choices": ["the", "dog"], "answer": 0},
]
TASKS = {
    "choose": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": " ",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "whole_text": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question * 3 + choices[0]}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
    "write": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}!",
        "doc_to_target": "{{choices[0]}}",
        "generation_kwargs": {"until": ["\n", "e"], "max_gen_toks": 12, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return byte_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def task_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    files = {"data_files": {"test": str(folder / "questions.jsonl")}}
    for name, task in TASKS.items():
        source = {"task": name, "dataset_path": "json", "dataset_kwargs": files, "test_split": "test"}
        (folder / f"{name}.yaml").write_text(json.dumps(source | task))  # JSON is YAML
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return open_for_inference(folder, torch.device("cpu"))


def answers(found, task):
    """Of each question what the model answered, before it was judged."""
    samples = sorted(found["samples"][task], key=lambda sample: sample["doc_id"])
    return [response for sample in samples for each in sample["resps"] for response in each]


def test_answers_are_those_of_the_harness_own_model_of_the_same_folder(folder, task_folder, model):
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    ours = run_tasks(model, list(TASKS), task_folder=task_folder, batch_tokens=300)
    theirs = simple_evaluate(
        HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=1),
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(task_folder)),
        bootstrap_iters=0,
    )
    chosen, expected = answers(ours, "choose"), answers(theirs, "choose")
    assert len(chosen) == sum(len(question["choices"]) for question in QUESTIONS)
    for (value, greedy), (their_value, their_greedy) in zip(chosen, expected, strict=True):
        assert float(value) == pytest.approx(float(their_value), abs=1e-3)
        assert greedy == their_greedy
    for value, their_value in zip(answers(ours, "whole_text"), answers(theirs, "whole_text"), strict=True):
        assert float(value) == pytest.approx(float(their_value), abs=1e-2)
    written = answers(ours, "write")
    assert written == answers(theirs, "write")
    assert any(written)
    assert not any("e" in each for each in written)
    for task, values in theirs["results"].items():
        judged = [key for key in values if key.endswith(",none") and "stderr" not in key]
        assert judged
        for key in judged:
            assert ours["results"][task][key] == pytest.approx(values[key], rel=1e-5)


def test_the_command_prints_each_figure(folder, task_folder):
    arguments = ["eval", str(folder), "--tasks", "choose", "--task-folder", str(task_folder), "--limit", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "loong_llm.cli.main", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "choose: acc " in done.stdout
    assert "choose: acc_norm " in done.stdout


def test_what_tasks_cannot_have_is_told(model, task_folder, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"no task is called 'chose' in the harness or in .*; `lm-eval ls tasks`"):
        run_tasks(model, ["chose"], task_folder=task_folder)
    with pytest.raises(UserError, match="is no folder; give one with YAML files of tasks"):
        run_tasks(model, ["choose"], task_folder=tmp_path / "nothing")
    with pytest.raises(UserError, match="--chat needs a chat template"):
        run_tasks(model, ["choose"], task_folder=task_folder, chat=True)
    monkeypatch.setattr(harness, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'loong-llm\[lm-eval\]'"):
        run_tasks(model, ["choose"])


def test_figures_are_told_with_their_errors():
    found = {"results": {"t": {"alias": "t", "acc,none": 0.5, "acc_stderr,none": 0.1, "ppl,none": 2.0}}}
    assert figures(found) == [("t", "acc", 0.5, 0.1), ("t", "ppl", 2.0, None)]
