"""The `loong-vla` command: check, train, evaluate, serve, convert."""

from __future__ import annotations

from loong_core.cli.app import make_app
from loong_core.cli.entry import run_app
from loong_vla.cli import check, convert, evaluate, quickstart, serve, stats, train

app = make_app(
    "loong-vla",
    "Train robot policies, and use what was trained.",
    {
        "quickstart": quickstart.quickstart,
        "train": train.train,
        "check": check.check,
        "stats": stats.stats,
        "eval": evaluate.evaluate,
        "serve": serve.serve,
        "convert": convert.convert,
    },
)


def main() -> None:
    """Entry point of the `loong-vla` command."""
    run_app(app)


if __name__ == "__main__":
    main()
