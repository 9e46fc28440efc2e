"""`loong-llm` as one rank runs it, noting what routers choose: `recorded_train.py FOLDER ARGUMENTS...`.

Each rank leaves its choices in FOLDER as `STEP-RANK.pt`, STEP being the number of steps taken before.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from layout_choices import Choices, by_microbatch, own_rows

from loong_core.engine.base import Engine
from loong_core.nn.moe.choices import recorded_choices
from loong_llm.recipes import trained_model

folder, *arguments = sys.argv[1:]
choices: Choices = {}
build_engine = trained_model.build_engine


def recording_engine(*given: Any, **options: Any) -> Engine:
    """The engine, which notes the choices of every step that it accumulates."""
    engine = build_engine(*given, **options)
    accumulate, context = engine.accumulate, engine.context

    def noting(microbatches: Any, forward_step: Any) -> Any:
        with recorded_choices(engine.stages, context) as recorded:
            result = accumulate(microbatches, forward_step)
        choices.update(by_microbatch(recorded, own_rows(microbatches, context), engine.updates))
        before = min(step for step, *_ in choices)
        torch.save(choices, Path(folder) / f"{before}-{context.rank}.pt")
        return result

    engine.accumulate = noting
    return engine


trained_model.build_engine = recording_engine
sys.argv[1:] = arguments
sys.orig_argv[2:] = arguments

from loong_llm.cli.main import main

main()
