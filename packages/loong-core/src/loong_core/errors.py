"""What can go wrong, told to the person who can mend it.

Every error that reaches a user says what is wrong (with the numbers), where (file, key, rank) and what to do, and
carries the exit status its command ends with.
"""

from __future__ import annotations

from dataclasses import dataclass


class LoongError(Exception):
    """Base of the project's own errors."""

    exit_status = 1


class UserError(LoongError):
    """The user's input (config, data, files, command line) cannot be used as it is."""

    exit_status = 2


class NumericalError(LoongError):
    """A numerical guard stopped the run before a damaged step was applied."""

    exit_status = 3


class HangError(LoongError):
    """A run in which no rank got on any more was ended; the last checkpoint is what there is."""

    exit_status = 4


class Interrupted(LoongError):
    """A signal ended the run after it had saved its state."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}; the run's state is saved, the same command resumes it")
        self.exit_status = 128 + signal_number


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a run file: `where` is a dotted key or a path, `what` the finding, `fix` the way out."""

    where: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        """One line: where, what, and what to do."""
        return f"{self.where}: {self.what}" + (f" ({self.fix})" if self.fix else "")


class ConfigError(UserError):
    """Every fault of a run's configuration, reported together."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults
        count = f"{len(faults)} fault" + ("s" if len(faults) != 1 else "")
        super().__init__(f"{count} in the configuration:\n" + "\n".join(f"  - {fault}" for fault in faults))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[Fault]]]:
        """Pickled by its faults: errors travel between ranks."""
        return type(self), (self.faults,)
