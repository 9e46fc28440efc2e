"""The `loong` command: what is installed, what it can run on, and how runs went."""

from __future__ import annotations

from loong_core.cli import compare, devices, doctor, models, ops, plot, tune
from loong_core.cli.app import make_app
from loong_core.cli.entry import run_app

app = make_app(
    "loong-core",
    "What is installed, what it can run on, and how runs went.",
    {
        "doctor": doctor.doctor,
        "devices": devices.devices,
        "ops": ops.ops,
        "models": models.models,
        "tune": tune.tune,
        "plot": plot.plot,
        "compare": compare.compare,
    },
)


def main() -> None:
    """Entry point of the `loong` command."""
    run_app(app)


if __name__ == "__main__":
    main()
