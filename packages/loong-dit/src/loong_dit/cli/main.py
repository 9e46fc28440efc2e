"""The `loong-dit` command: cache, check, train, sample, convert."""

from __future__ import annotations

from loong_core.cli.app import make_app
from loong_core.cli.entry import run_app
from loong_dit.cli import cache, check, convert, quickstart, sample, train

app = make_app(
    "loong-dit",
    "Train diffusion transformers, and draw samples from what was trained.",
    {
        "quickstart": quickstart.quickstart,
        "cache": cache.cache,
        "train": train.train,
        "check": check.check,
        "sample": sample.sample,
        "convert": convert.convert,
    },
)


def main() -> None:
    """Entry point of the `loong-dit` command."""
    run_app(app)


if __name__ == "__main__":
    main()
