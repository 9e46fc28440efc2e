"""The `loong-llm` command: check, train, evaluate, generate, convert."""

from __future__ import annotations

from loong_core.cli.app import make_app
from loong_core.cli.entry import run_app
from loong_llm.cli import (
    check,
    convert,
    evaluate,
    export,
    generate,
    inspect_data,
    plan,
    preprocess,
    quickstart,
    serve_check,
    train,
)

app = make_app(
    "loong-llm",
    "Train language models, and use what was trained.",
    {
        "quickstart": quickstart.quickstart,
        "train": train.train,
        "check": check.check,
        "inspect-data": inspect_data.inspect_data,
        "plan": plan.plan,
        "preprocess": preprocess.preprocess,
        "convert": convert.convert,
        "export": export.export,
        "serve-check": serve_check.serve_check,
        "generate": generate.generate,
        "eval": evaluate.evaluate,
    },
)


def main() -> None:
    """Entry point of the `loong-llm` command."""
    run_app(app)


if __name__ == "__main__":
    main()
