"""Look at built wheels and at the environment they were installed into: `python -m tools.wheels DIST`.

Run by `nox -s build` in an environment that holds the wheels and what they require, and nothing else.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator

FOREIGN = ("diffusers", "lerobot", "transformer-engine")
"""What a user of language models must never be made to install."""

HELP_SECONDS = 1.0
"""Every command's `--help` answers within this."""


def faults_of_wheel(wheel: pathlib.Path) -> Iterator[str]:
    """A wheel holds its typing marker and no tests."""
    names = zipfile.ZipFile(wheel).namelist()
    module = wheel.name.split("-")[0]
    if f"{module}/py.typed" not in names:
        yield f"{wheel.name}: no {module}/py.typed"
    if any("/tests/" in name for name in names):
        yield f"{wheel.name}: carries tests"
    print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 1024:.0f} KiB")


def foreign_packages() -> Iterator[str]:
    """The environment holds nothing of another modality."""
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"].lower().replace("_", "-")
        if name.startswith(FOREIGN):
            yield f"the wheels bring {name}"


def slow_help() -> Iterator[str]:
    """Each installed command answers `--help` in time (best of three)."""
    commands = [
        entry.name
        for entry in importlib.metadata.entry_points(group="console_scripts")
        if entry.name.startswith("loong")
    ]
    if "loong-llm" not in commands:
        yield f"no loong-llm command among {commands}"
    for command in commands:
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run(
                [str(pathlib.Path(sys.executable).with_name(command)), "--help"], check=True, capture_output=True
            )
            seconds.append(time.perf_counter() - start)
        print(f"{command} --help: {min(seconds):.2f} s")
        if min(seconds) > HELP_SECONDS:
            yield f"{command} --help takes {min(seconds):.2f} s, at most {HELP_SECONDS} s are allowed"


def main() -> int:
    """Check every wheel of a folder and the environment."""
    wheels = sorted(pathlib.Path(sys.argv[1]).glob("*.whl"))
    faults = [] if wheels else [f"no wheel in {sys.argv[1]}"]
    for wheel in wheels:
        faults += faults_of_wheel(wheel)
    faults += [*foreign_packages(), *slow_help()]
    for fault in faults:
        print(f"fail {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
