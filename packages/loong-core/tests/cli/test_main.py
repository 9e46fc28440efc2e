"""The command answers at once, and knows its commands and its version."""

import subprocess
import sys
from importlib.metadata import version

import pytest

SLOW = ("torch", "transformers", "megatron", "matplotlib", "datasets", "loong_kernels")


def test_help_imports_nothing_slow():
    program = f"import sys, loong_core.cli.main; print([name for name in {SLOW} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["doctor", "devices", "ops", "models", "plot"])
def test_every_command_is_in_the_help(command, loong):
    answer = loong("--help")
    assert answer.status == 0
    assert command in answer.out
    assert loong(command, "--help").status == 0


def test_the_version_is_the_packages(loong):
    assert loong("--version").out == f"loong-core {version('loong-core')}\n"


def test_an_unknown_command_is_named(loong):
    answer = loong("dveices")
    assert answer.status == 2
    assert "dveices" in answer.err
