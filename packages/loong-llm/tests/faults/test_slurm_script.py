"""The batch script of the examples, run by a shell in which `srun` and `scontrol` are stand-ins for SLURM's."""

import json
import os
import socket
import subprocess
import sys

import pytest
from train_command import EXAMPLES, FILES

SRUN = """#!{python}
import os, subprocess, sys
command = [argument for argument in sys.argv[1:] if not argument.startswith("--kill-on-bad-exit")]
if command[0] == "loong-llm":
    command[:1] = [sys.executable, "-m", "loong_llm.cli.main"]
if "FAKE_STATUS" in os.environ:
    sys.exit(int(os.environ["FAKE_STATUS"]))
step = {{"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost", "SLURM_NODEID": "0"}}
tasks = [
    subprocess.Popen(command, env=os.environ | step | {{"SLURM_PROCID": rank, "SLURM_LOCALID": rank}}) for rank in "01"
]
sys.exit(max(task.wait() for task in tasks))
"""


@pytest.fixture
def sbatch(tmp_path):
    """Runs the script as the batch shell would, and gives status, output and what scontrol was asked."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "srun").write_text(SRUN.format(python=sys.executable))
    (programs / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/scontrol.txt\n')
    for program in programs.iterdir():
        program.chmod(0o755)

    def run(*arguments, **environ):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        batch = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "4711",
            "SLURM_PROCID": "0",  # the batch shell has these without being a rank
            "SLURM_NTASKS": "2",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            ["bash", str(EXAMPLES / "slurm.sbatch"), *map(str, arguments)],
            env=os.environ | batch | environ,
            capture_output=True,
            text=True,
        )
        asked = tmp_path / "scontrol.txt"
        return done, asked.read_text() if asked.exists() else ""

    return run


def test_the_tasks_of_a_step_train_as_ranks_of_one_run(sbatch, tmp_path):
    output = tmp_path / "run"
    short = ("train.steps=2", "train.warmup_steps=0", "train.validate_every=null")
    done, asked = sbatch(EXAMPLES / "tiny.yaml", *FILES, f"output={output}", *short)
    assert done.returncode == 0, done.stderr
    assert "; 2 ranks" in done.stdout
    assert done.stdout.count("step 2/2") == 1  # the console is rank 0's
    assert asked == ""
    manifest = json.loads((output / "checkpoints" / "step-00000002" / "manifest.json").read_text())
    assert manifest["world_size"] == 2


@pytest.mark.parametrize(("status", "asked"), [(143, "requeue 4711\n"), (3, ""), (1, "")])
def test_a_run_that_was_terminated_and_saved_is_queued_again_and_no_other(sbatch, tmp_path, status, asked):
    done, found = sbatch(EXAMPLES / "tiny.yaml", f"output={tmp_path / 'run'}", FAKE_STATUS=str(status))
    assert (done.returncode, found) == (status, asked)
