"""Which experts the routers of a run chose, kept step by step, to tell whether two runs decided alike.

A choice is kept by microbatch, row and layer, and belongs to no layout: the ranks of a step each write those of their
own tokens and layers, to `router_choices/step-N/rank-R.safetensors`, and reading puts them together.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from loong_core.engine.base import Engine
from loong_core.errors import UserError
from loong_core.nn.moe.balance import routers
from loong_core.nn.moe.choices import ChoicesOfRows, by_microbatch, count_differing, own_rows, recorded_choices
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.crew import Crew

_ROWS = "rows/"


class RouterRecord:
    """Keeps the choices of every so many steps.

    Args:
        folder: where to.
        every: steps from one that is kept to the next; None keeps none.
        engine: whose routers.
        context: of the decoder.
        after: the step that the run goes on from; what is kept of later ones, left by a run that was killed, goes.

    Raises:
        UserError: choices are asked for, and the model has no router. On every rank.
    """

    def __init__(
        self, folder: Path, every: int | None, engine: Engine, context: ParallelContext, *, after: int
    ) -> None:
        self._folder, self._every = folder, every
        self._engine, self._context = engine, context
        crew = Crew()
        crew.on_first(lambda: [shutil.rmtree(path) for step, path in kept_steps(folder).items() if step > after])
        if every is not None and crew.least(1 - any(True for _ in routers(engine.stages))):
            raise UserError("logging.router_choices_every would be ignored: the model has no routers; remove it")

    @contextmanager
    def of(self, step: int, microbatches: Sequence[Any]) -> Iterator[None]:
        """Around forward and backward of a step, whose microbatches are this data rank's."""
        if self._every is None or step % self._every:
            yield
            return
        rows = own_rows(microbatches, self._context)
        with recorded_choices(self._engine.stages, self._context) as recorded:
            yield
        if self._context.tensor.rank == 0 and recorded:
            file = self._folder / f"step-{step:08}" / f"rank-{self._context.rank}.safetensors"
            _write(file, by_microbatch(recorded, rows))


def kept_steps(folder: Path) -> dict[int, Path]:
    """Steps of which a run has kept the choices, in order."""
    names = {path.name.removeprefix("step-"): path for path in sorted(folder.glob("step-*"))}
    return {int(number): path for number, path in names.items() if number.isdecimal()}


def read_choices(step: Path) -> ChoicesOfRows:
    """The choices of a step, of all its ranks; rows are in order."""
    parts: dict[tuple[int, str], list[tuple[Tensor, Tensor]]] = {}
    for file in sorted(step.glob("rank-*.safetensors")):
        try:
            stored = load_file(file)
        except SafetensorError as error:
            raise UserError(f"{file} cannot be read: {error}; remove {step}") from error
        for key, experts in stored.items():
            if not key.startswith(_ROWS):
                microbatch, _, router = key.partition("/")
                parts.setdefault((int(microbatch), router), []).append((stored[_ROWS + microbatch], experts))
    found: ChoicesOfRows = {}
    for key, shares in parts.items():
        rows = torch.cat([rows for rows, _ in shares])
        order = rows.argsort()
        found[key] = (rows[order], torch.cat([experts for _, experts in shares])[order])
    return found


def differing_in_step(ours: Path, theirs: Path) -> tuple[int, int]:
    """How many choices of a step differ between two runs, and of how many.

    Raises:
        UserError: they are not of the same tokens and layers.
    """
    mine, other = read_choices(ours), read_choices(theirs)
    alike = mine.keys() == other.keys() and all(torch.equal(mine[key][0], other[key][0]) for key in mine)
    if not alike:
        raise UserError(
            f"{ours} and {theirs} hold choices of other tokens or layers; runs can be compared that have the same "
            "model, data, train.global_batch_size and train.micro_batch_size"
        )
    different = sum(count_differing(mine[key][1], other[key][1]) for key in mine)
    return different, sum(experts.numel() for _, experts in mine.values())


def _write(file: Path, choices: ChoicesOfRows) -> None:
    largest = max(int(experts.max()) for _, experts in choices.values())
    small = torch.uint8 if largest < 256 else torch.int32
    tensors: dict[str, Tensor] = {}
    for (microbatch, router), (rows, experts) in choices.items():
        tensors[f"{_ROWS}{microbatch}"] = rows.to(torch.int32)
        tensors[f"{microbatch}/{router}"] = experts.to(small).contiguous()
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".tmp")
    save_file(tensors, temporary)
    os.replace(temporary, file)
