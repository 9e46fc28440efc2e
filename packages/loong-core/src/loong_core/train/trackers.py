"""TensorBoard and Weights & Biases: extras that take the same rows as `metrics.jsonl`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol

from loong_core.config.sections import LoggingSection, WandbSection
from loong_core.errors import UserError


class Tracker(Protocol):
    """Takes rows of metrics."""

    def write(self, row: dict[str, Any]) -> None:
        """Take one row; it has a `step`."""
        ...

    def close(self) -> None:
        """Hand on what is held back."""
        ...


def open_trackers(
    settings: LoggingSection, folder: Path, config: dict[str, Any], *, resume_after: int
) -> list[Tracker]:
    """The trackers that a run file asks for.

    Raises:
        UserError: one is not installed (names the extra that brings it), or W&B refuses the run.
    """
    trackers: list[Tracker] = []
    if settings.tensorboard:
        trackers.append(TensorBoard(folder / "tensorboard", resume_after))
    if settings.wandb is not None:
        trackers.append(Wandb(settings.wandb, folder, config))
    return trackers


class TensorBoard:
    """Event files under `output/tensorboard`."""

    def __init__(self, folder: Path, resume_after: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("logging.tensorboard", "tensorboard") from error
        # Events of steps that the resumed run takes again are purged, as in metrics.jsonl.
        self._writer = SummaryWriter(str(folder), purge_step=resume_after + 1)

    def write(self, row: dict[str, Any]) -> None:
        """One scalar a figure."""
        for key, value in _figures(row).items():
            self._writer.add_scalar(key, value, row["step"])

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


class Wandb:
    """A W&B run whose id is kept in the run folder, so that a resumed run continues it."""

    def __init__(self, settings: WandbSection, folder: Path, config: dict[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise _missing("logging.wandb", "wandb") from error
        identity = folder / "wandb" / "run_id"
        known = identity.read_text(encoding="utf-8").strip() if identity.exists() else None
        try:
            self._run = wandb.init(
                project=settings.project,
                entity=settings.entity,
                name=settings.name,
                mode="offline" if settings.offline else "online",
                dir=str(folder),
                config=config,
                id=known,
                resume="allow",
            )
        except wandb.Error as error:  # no key, no such project, no network
            raise UserError(
                f"logging.wandb: {str(error).rstrip('.')}; or set logging.wandb.offline=true and sync later"
            ) from error
        identity.parent.mkdir(parents=True, exist_ok=True)
        identity.write_text(self._run.id, encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        """One step's figures."""
        self._run.log(_figures(row), step=row["step"])

    def close(self) -> None:
        """Upload the rest."""
        self._run.finish()


def _figures(row: dict[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in row.items()
        if key != "step" and isinstance(value, (int, float)) and math.isfinite(value)
    }


def _missing(key: str, extra: str) -> UserError:
    return UserError(f"{key}: {extra} is not installed; pip install 'loong-core[{extra}]', or leave the key out")
