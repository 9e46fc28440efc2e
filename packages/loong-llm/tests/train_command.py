"""The train command as users start it, watched through what it prints and writes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

from loong_core.train.metrics import read_rows

EXAMPLES = Path(__file__).parents[3] / "examples" / "llm"
FILES = (f"data.train={EXAMPLES / 'tiny.txt'}", f"data.validation={EXAMPLES / 'tiny_held_out.txt'}")
"""The example's data, wherever the command is given."""


class TrainCommand:
    """`loong-llm train examples/llm/tiny.yaml ... --nproc N`, running; or its ranks started by `torchrun` arguments."""

    def __init__(self, output, *overrides, nproc=2, torchrun=()):
        starter = ["-m", "torch.distributed.run", *torchrun] if torchrun else []
        arguments = [
            *starter,
            "-m",
            "loong_llm.cli.main",
            "train",
            str(EXAMPLES / "tiny.yaml"),
            *FILES,
            f"output={output}",
            *overrides,
            *(() if torchrun else ("--nproc", str(nproc))),
        ]
        self.output = Path(output)
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )
        self.said = ""

    def wait_for_line(self, words):
        """Read what the command prints until a line holds `words`."""
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return
        raise AssertionError(f"{words!r} was never printed:\n{self.said}")

    def wait_for_file(self, pattern):
        """Wait until a file of the run folder matches `pattern`."""
        pause = Event()
        while not any(self.output.glob(pattern)):
            assert self.process.poll() is None, f"{pattern} never appeared:\n{self.rest()}"
            pause.wait(0.002)

    def ranks(self):
        """Process ids of the ranks."""
        launcher = self.process.pid
        return [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]

    def kill(self):
        """SIGKILL for every rank and the launcher."""
        for pid in [*self.ranks(), self.process.pid]:
            os.kill(pid, signal.SIGKILL)
        self.end()

    def rest(self):
        """All that it printed."""
        self.said += self.process.stdout.read()
        return self.said

    def end(self):
        """The exit status."""
        self.rest()
        self.process.stdout.close()
        return self.process.wait()


def trained(output, *overrides, nproc=2):
    """Train to the end; what was printed."""
    command = TrainCommand(output, *overrides, nproc=nproc)
    assert command.end() == 0, command.said
    return command.said


def figures(output):
    """What must be equal, step by step, in runs that are the same."""
    return [
        (row["step"], row["loss"], row["grad_norm"], row.get("val_loss")) for row in read_rows(output / "metrics.jsonl")
    ]


def weights_hash(output):
    """Of the exported weights."""
    return hashlib.sha256((output / "hf" / "model.safetensors").read_bytes()).hexdigest()
