"""`loong doctor`: what is installed, what was found, what is broken, and how fast this machine copies and talks."""

from __future__ import annotations

import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loong_core.cli.devices import device_table
from loong_core.cli.families import find_families
from loong_core.cli.shared_folder import nearest_existing, ranks_that_miss
from loong_core.cli.tables import add_row, console, table
from loong_core.errors import UserError
from loong_core.parallel.ranks import RankPlace, initialise_from_env, leave

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from loong_core.device import Device, Found, Selection

REQUIRED = (
    "torch",
    "triton",
    "megatron-core",
    "transformers",
    "tokenizers",
    "datasets",
    "safetensors",
    "numpy",
    "pydantic",
)
"""Packages whose versions matter when something goes wrong."""

OPTIONAL = {
    "tensorboard": "logging.tensorboard; pip install 'loong-core[tensorboard]'",
    "wandb": "logging.wandb; pip install 'loong-core[wandb]'",
    "transformer-engine": "fp8 and fused layers on NVIDIA GPUs; pip install 'transformer-engine[pytorch]'",
    "tilelang": "kernels written in TileLang; pip install tilelang",
}
"""Packages that add something, and what."""


def doctor(
    nproc: Annotated[
        int, typer.Option("--nproc", min=1, help="Start this many ranks here and time an all-reduce.")
    ] = 1,
    device: Annotated[str | None, typer.Option("--device", help="A device's name; by default what a run gets.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Output folder of a run to come: do all ranks share it?")
    ] = None,
) -> None:
    """Report packages, devices and plug-ins, time a copy and an all-reduce, and look at an output folder.

    Under torchrun every rank takes part and rank 0 reports.
    """
    from loong_core.device import discover, select

    place = RankPlace.from_env()
    if nproc > 1 and not place.started:
        raise typer.Exit(_start_ranks(nproc, device, output))
    out = console()
    out.quiet = place.rank != 0
    if not out.quiet:
        found = discover()
        out.print(package_table())
        out.print(device_table(found))
        out.print(plugin_table(found))
    selection = select(device)
    out.print(f"a run gets: {selection.why}", markup=False)
    _describe(out, selection)
    try:
        _measure(out, selection.device, place, output)
    finally:
        leave()


def package_table() -> Table:
    """Versions of Python, this project's packages, and those it stands on."""
    made = table("Packages", "package", "version", "what it is for, where it is missing")
    add_row(made, "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}", "")
    ours = sorted({each.name for each in distributions() if each.name.startswith("loong-")})
    for name in (*ours, *REQUIRED):
        add_row(made, name, _version(name) or "not installed", "")
    for name, purpose in OPTIONAL.items():
        installed = _version(name)
        add_row(made, name, installed or "not installed", "" if installed else purpose)
    return made


def plugin_table(devices: list[Found]) -> Table:
    """Everything that came by an entry point, and the error of what did not load."""
    from loong_kernels import registry

    made = table("Plug-ins", "group", "name", "state", "origin", "error")
    for each in devices:
        if each.origin != "built in":
            failed = each.state == "failed"
            add_row(
                made,
                "loong.devices",
                each.name,
                "failed" if failed else "loaded",
                each.origin,
                each.reason if failed else "",
            )
    for plugin in registry.plugins():
        state = "failed" if plugin.error else "loaded"
        add_row(made, "loong.kernels", plugin.name, state, plugin.origin, plugin.error or "")
    for family in find_families():
        state = "failed" if family.error else "loaded"
        add_row(made, "loong.families", family.name, state, family.origin, family.error or "")
    return made


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _start_ranks(nproc: int, device: str | None, output: Path | None) -> int:
    """Run this command as `nproc` ranks of this machine; returns its exit status."""
    from loong_core.parallel.launch import launch

    command = [sys.executable, "-m", "loong_core.cli.main", "doctor"]
    command += ["--device", device] if device else []
    command += ["--output", str(output)] if output else []
    return launch(command, nproc)


def _describe(out: Console, selection: Selection) -> None:
    """What the device can do, and the environment its runtime gets."""
    from loong_core.device import apply_environment

    chosen = apply_environment(selection.device)
    able = selection.device.capabilities()
    words = [name for name, has in (("bf16", able.bf16), ("Triton", able.triton), ("graphs", able.graphs)) if has]
    words += [f"fp8 {kind}" for kind in sorted(able.fp8)]
    out.print(f"{selection.device.describe()}; runs {', '.join(words) or 'float32 only'}", markup=False)
    for key, value in chosen.items():
        out.print(f"environment default: {key}={value}", markup=False)


def _measure(out: Console, device: Device, place: RankPlace, output: Path | None) -> None:
    """Time what there is to time. Collective where a launcher started several ranks."""
    import torch

    from loong_core.device.measure import time_all_reduce, time_copies

    bound = initialise_from_env(device)[1] if place.started else device.bind(0)
    memory, peak = device.memory(), device.peak_flops(torch.bfloat16)
    rate = f"MFU in bf16 is of {peak / 1e12:.3g} TFLOP/s" if peak else "its peak rate is unknown: runs report no MFU"
    out.print(f"{bound}: {memory.total / 2**30:.1f} GiB of memory; {rate}", markup=False)
    for timing in time_copies(device, bound):
        out.print(str(timing), markup=False)
    if place.world_size > 1:
        out.print(str(time_all_reduce(device, bound)), markup=False)
    if output is not None:
        _look_at(out, output, place)


def _look_at(out: Console, output: Path, place: RankPlace) -> None:
    """Whether the output folder can be written, has room, and is the same for all ranks."""
    where = nearest_existing(output)
    free = shutil.disk_usage(where).free / 2**30
    out.print(f"output {output}: {free:.1f} GiB free on the file system of {where}", markup=False)
    if place.world_size == 1:
        out.print("one rank: whether machines share the folder shows when ranks of all of them run this (torchrun)")
        return
    try:
        missing = ranks_that_miss(output)
    except OSError as error:
        raise UserError(f"output {output} cannot be written: {error}; name another folder") from error
    if not missing:
        out.print(f"all {place.world_size} ranks share it")
        return
    out.print(
        f"warning: {', '.join(missing)} cannot see what rank 0 writes there; checkpoints and resuming need a folder "
        "that every machine mounts at the same path",
        style="bold yellow",
        markup=False,
    )
