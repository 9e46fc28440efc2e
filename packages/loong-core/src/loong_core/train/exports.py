"""Models written while a run trains: every so many steps, and when somebody asks.

A request is a file in the run folder, so it reaches a run on many machines as well as one on this. Rank 0 looks for it
at each step boundary and tells the others with the figures that they exchange anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from loong_core.config import RunFolder
from loong_core.errors import UserError
from loong_core.parallel.crew import Crew

_ASKED = 1 << 16
"""Added to a signal's number, which is less."""


class Exports:
    """Decides after which steps a model is written, and has it written.

    Args:
        folder: the run's.
        every: steps from one to the next; None for none but those asked for.
        last: the run's last step, after which its model is written anyway.
        write: writes it to a folder; collective. None where a recipe cannot write while training.
        say: tells people.

    Raises:
        UserError: models are to be written where a recipe cannot.
    """

    def __init__(
        self,
        folder: RunFolder,
        every: int | None,
        last: int,
        write: Callable[[Path], None] | None,
        say: Callable[[str], None],
    ) -> None:
        if every is not None and write is None:
            raise UserError("checkpoint.export_every: this run writes its model at its end only; remove the key")
        self._folder = folder
        self._every = every
        self._last = last
        self._write = write
        self._say = say
        self._crew = Crew()
        self._asked = False

    def noted(self, signal_number: int) -> int:
        """On each rank: a signal's number, and with it whether somebody has asked for the model."""
        asked = self._write is not None and self._crew.rank == 0 and self._folder.export_request.exists()
        return signal_number + _ASKED * asked

    def take(self, agreed: int) -> int:
        """Of what the ranks have agreed on (the largest of `noted`) the signal's number.

        A signal that reached another rank only than the one that saw the request is seen a step later.
        """
        self._asked = agreed >= _ASKED
        return agreed % _ASKED

    def at(self, step: int) -> Path | None:
        """Write the model, if it is due after this step. Collective.

        Returns:
            the folder, if it was.
        """
        due = self._every is not None and step % self._every == 0
        if self._write is None or not (self._asked or due):
            return None
        if self._asked and self._crew.rank == 0:
            self._folder.export_request.unlink(missing_ok=True)
        self._asked = False
        if step == self._last:
            return None
        folder = self._folder.export_of(step)
        self._write(folder)
        self._say(f"model of step {step} written to {folder}")
        return folder
