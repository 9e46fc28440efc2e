"""What SLURM tells the tasks of a step that `srun` starts, in torchrun's words.

A batch script's own shell has a part of these variables too, without being a rank: the variables of a *step* are what
is looked at. The ranks meet at the step's first host, at a port that follows from job and step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from loong_core.errors import UserError

_STEP = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
_PORTS = range(20000, 60000)


def torchrun_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The six variables of torchrun for a task; none outside a step of several tasks.

    MASTER_ADDR and MASTER_PORT are kept where they are set.

    Raises:
        UserError: a step's variable is missing or cannot be read.
    """
    if "SLURM_STEP_ID" not in environ or environ.get("SLURM_STEP_NUM_TASKS", "1") == "1":
        return {}
    missing = [name for name in _STEP if name not in environ]
    if missing:
        raise UserError(f"environment: SLURM_STEP_ID is set, but {', '.join(missing)} is not; start ranks with srun")
    node = _number(environ, "SLURM_NODEID", "0")
    per_node = tasks_per_node(environ["SLURM_STEP_TASKS_PER_NODE"])
    step = _number(environ, "SLURM_JOB_ID", "0") * 31 + _number(environ, "SLURM_STEP_ID")
    return {
        "RANK": environ["SLURM_PROCID"],
        "WORLD_SIZE": environ["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environ["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(per_node[min(node, len(per_node) - 1)]),
        "MASTER_ADDR": environ.get("MASTER_ADDR") or first_host(environ["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": environ.get("MASTER_PORT") or str(_PORTS[step % len(_PORTS)]),
    }


def tasks_per_node(text: str) -> list[int]:
    """`2(x3),1` is three nodes of two tasks and one of one."""
    counts = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            raise UserError(f"environment: SLURM_STEP_TASKS_PER_NODE={text!r} cannot be read, as 2(x3),1 could")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def first_host(text: str) -> str:
    """The first of a list of hosts as SLURM writes it: `gpu[03-05,9],login` begins with `gpu03`."""
    found = re.match(r"([^,\[\]]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?", text.strip())
    if found is None:
        raise UserError(f"environment: SLURM_STEP_NODELIST={text!r} cannot be read; set MASTER_ADDR")
    return found[1] + (found[2] or "") + (found[3] or "")


def _number(environ: Mapping[str, str], name: str, default: str | None = None) -> int:
    text = environ.get(name, default)
    if text is None or not text.isdecimal():
        raise UserError(f"environment: {name}={text!r} is not a number")
    return int(text)
