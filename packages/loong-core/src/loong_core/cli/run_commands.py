"""What the commands `train` and `check` do in every package, once they know the sections of its run files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from loong_core.config import RunConfig
    from loong_core.errors import Fault


def start_training(
    sections: type[RunConfig], run_file: Path, overrides: Sequence[str] | None, nproc: int, *, check: str, recipe: str
) -> None:
    """Read and check a run file, start its ranks where there are to be several, and train.

    Args:
        sections: of the run file.
        run_file: as given.
        overrides: `key=value` of the command line.
        nproc: ranks to start; this process is one of them where a launcher has started it.
        check: `module:function` from what was read and the number of ranks to a configuration without faults.
        recipe: `module:function` that trains by a configuration. Neither is imported before it is needed: a file that
            cannot be read says so at once, and a process that only starts ranks loads no model.

    Raises:
        ConfigError: with every fault of the run file.
    """
    from loong_core.config import RunFolder, load_run
    from loong_core.config.files import user_path
    from loong_core.parallel.launch import RankPlace, relaunch_as_ranks

    place = RankPlace.from_env()
    loaded = load_run(sections, run_file, overrides or ())
    config = resolve_name(check)(loaded, place.world_size if place.started else nproc)
    if nproc > 1 and not place.started:
        folder = RunFolder(user_path(config.output))
        relaunch_as_ranks(nproc, folder.logs, folder.after_a_crash)
    resolve_name(recipe)(config)


def tell_checked(
    run_file: Path, faults: Sequence[Fault], facts: Mapping[str, str], warnings: Iterable[object] = ()
) -> None:
    """Print what a run would be, and what to be wary of.

    Raises:
        ConfigError: there are faults.
    """
    from loong_core.errors import ConfigError

    if faults:
        raise ConfigError(list(faults))
    width = max(map(len, facts))
    for name, fact in facts.items():
        typer.echo(f"{name:<{width}}  {fact}")
    for warning in warnings:
        typer.echo(f"warning: {warning}")
    typer.echo(f"{run_file}: no faults")
