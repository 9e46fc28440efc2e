"""The `loong-vlm` command: check, train, evaluate, generate, convert."""

from __future__ import annotations

from loong_core.cli.app import make_app
from loong_core.cli.entry import run_app
from loong_vlm.cli import check, convert, convert_data, evaluate, generate, inspect_data, plan, quickstart, train

app = make_app(
    "loong-vlm",
    "Train vision-language models, and use what was trained.",
    {
        "quickstart": quickstart.quickstart,
        "train": train.train,
        "check": check.check,
        "inspect-data": inspect_data.inspect_data,
        "plan": plan.plan,
        "convert": convert.convert,
        "convert-data": convert_data.convert_data,
        "generate": generate.generate,
        "eval": evaluate.evaluate,
    },
)


def main() -> None:
    """Entry point of the `loong-vlm` command."""
    run_app(app)


if __name__ == "__main__":
    main()
