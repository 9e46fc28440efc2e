"""Tasks of the lm-evaluation-harness (the extra `lm-eval`), judged on a model in memory.

Requests are answered by `loong_llm.harness_model`; what a task asks and how answers are counted is the harness's.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loong_core.errors import UserError
from loong_llm.inference import OpenedModel


def run_tasks(
    model: OpenedModel,
    tasks: Sequence[str],
    *,
    task_folder: Path | None = None,
    num_fewshot: int | None = None,
    limit: int | None = None,
    chat: bool = False,
    batch_tokens: int = 4096,
) -> dict[str, Any]:
    """Judge a model by tasks.

    Args:
        model: what answers.
        tasks: names of the harness's tasks or groups, or of those in `task_folder`.
        task_folder: a folder with YAML files of tasks, which may name Python code of their own.
        num_fewshot: examples before each question; None: what each task says.
        limit: questions of each task, for a quick look; None: all.
        chat: whether the tokenizer's chat template writes the questions.
        batch_tokens: tokens of one forward pass, about.

    Returns:
        What the harness's `simple_evaluate` returns, each question's answers (`samples`) included.

    Raises:
        UserError: the harness is not installed, there is no such task, or a task asks for what is not served.
    """
    if find_spec("lm_eval") is None:
        raise UserError("--tasks needs the lm-evaluation-harness; pip install 'loong-llm[lm-eval]'")
    if task_folder is not None and not task_folder.is_dir():
        raise UserError(f"--task-folder {task_folder} is no folder; give one with YAML files of tasks")
    if chat and not model.tokenizer.chat_template:
        raise UserError("--chat needs a chat template, and the tokenizer has none; leave it out")
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    from loong_llm.harness_model import HarnessModel

    manager = TaskManager(include_path=None if task_folder is None else str(task_folder))
    unknown = [name for name in tasks if not manager.match_tasks([name])]
    if unknown:
        where = "" if task_folder is None else f" or in {task_folder}"
        raise UserError(f"no task is called {unknown[0]!r} in the harness{where}; `lm-eval ls tasks` lists its own")
    found = simple_evaluate(
        HarnessModel(model, batch_tokens),
        tasks=list(tasks),
        num_fewshot=num_fewshot,
        limit=limit,
        apply_chat_template=chat,
        task_manager=manager,
        bootstrap_iters=1000,
    )
    assert found is not None, "one process judges, so it has the figures"
    return dict(found)


def figures(found: dict[str, Any]) -> list[tuple[str, str, float, float | None]]:
    """Task, metric, value and standard error of each figure (None where the harness gives none), for people."""
    told = []
    for task, values in found["results"].items():
        for key, value in values.items():
            metric, _, kind = key.partition(",")
            if isinstance(value, int | float) and kind and not metric.endswith("_stderr"):
                error = values.get(f"{metric}_stderr,{kind}")
                told.append((task, metric, float(value), float(error) if isinstance(error, int | float) else None))
    return told
