"""Checkpoints to resume a run from: saved while training goes on, and visible only when complete.

A save copies this rank's boxes to host memory and returns; a thread writes and flushes them into the attempt's own
hidden folder. At a later step boundary the ranks agree that all of them are durable, and rank 0 adds index and manifest
and renames the folder. Whatever dies before the rename leaves the checkpoints that were there; what it left is removed
at the next start. (torch's own distributed checkpoint keeps one box a tensor in a safetensors file, and no hashes; the
distributed optimizer's shards are several boxes, and its general format is read by pickle.)
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loong_core.checkpoint.pieces import Piece, StatePiece
from loong_core.checkpoint.resume_folder import (
    FORMAT,
    MANIFEST,
    ResumeFolder,
    WrittenFile,
    published,
    step_folder,
    write_index,
    write_manifest,
    write_pieces,
)
from loong_core.engine.base import Engine
from loong_core.errors import LoongError, UserError
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.crew import Crew
from loong_core.wording import counted

RANDOM_STATE = "random_state"
_ABANDONED_SECONDS = 3600.0


class SaveError(LoongError):
    """A checkpoint could not be written; those published before are unharmed."""


@dataclass
class _Attempt:
    """A save under way.

    Attributes:
        step: the step it is of.
        folder: its hidden folder.
        manifest: what the manifest will say, but for the files.
        protected: a step whose checkpoint is not removed for its age.
        thread: writes this rank's file; None once it has been joined.
        written: the file, when it is durable.
        failure: what went wrong instead.
    """

    step: int
    folder: Path
    manifest: dict[str, Any]
    protected: int | None = None
    thread: threading.Thread | None = None
    written: WrittenFile | None = None
    failure: str | None = None

    @property
    def code(self) -> int:
        """-1 failed, 0 under way, 1 durable."""
        if self.failure is not None:
            return -1
        return 1 if self.written is not None else 0


class Checkpointer:
    """Saves and loads one run's checkpoints. All methods are collective over the world's ranks.

    Args:
        folder: where checkpoints are published, as `step-N`.
        keep: how many to keep; older ones are removed after a new one is published. None keeps all.
        asynchronous: whether `save` returns before the files are written.
        context: its layout is noted in the manifest.
        say: told of what a checkpoint could not give.
        at_stage: told of each stage of a save (`begun`, `writing`, `durable`, `indexed`, `published`, `pruned`) with
            its folder, on the rank and thread that reach it.
    """

    def __init__(
        self,
        folder: Path,
        keep: int | None = 2,
        asynchronous: bool = True,
        context: ParallelContext | None = None,
        *,
        say: Callable[[str], None] = lambda text: None,
        at_stage: Callable[[str, Path], None] = lambda stage, folder: None,
    ) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep={keep}: at least the last checkpoint is kept")
        self.folder = folder
        self.keep = keep
        self.asynchronous = asynchronous
        self.context = context
        self._crew = Crew()
        self._say = say
        self._at_stage = at_stage
        self._attempt: _Attempt | None = None

    def save(self, step: int, engine: Engine, extra: dict[str, Any], *, protected: int | None = None) -> None:
        """Save the state after `step`. A save that is still under way is finished first.

        Args:
            step: number of the last step taken.
            engine: whose state to save.
            extra: what else the run needs to go on, as JSON has it, equal on every rank.
            protected: a step whose checkpoint stays, beside the `keep` newest.

        Raises:
            SaveError: the save before this one failed.
            UserError: this step is published already, with another state.
        """
        self.finish()
        manifest = {"format": FORMAT, "step": step, "updates": engine.updates, "extra": json.loads(json.dumps(extra))}
        if self._crew.on_first(lambda: self._is_saved(step, manifest)):
            return
        token = self._crew.from_first(_owner() if self._crew.rank == 0 else None)
        attempt = self.folder / f".{step_folder(self.folder, step).name}.saving-{token}"
        attempt.mkdir(parents=True, exist_ok=True)
        self._at_stage("begun", attempt)
        pieces = [
            StatePiece(piece.kind, piece.piece, _host_copy(piece.tensor))
            for piece in engine.state_pieces()
            if piece.tensor is not None
        ]
        pieces.append(_random_state(self._crew.rank, engine.device.random_state()))
        manifest |= {
            "engine": type(engine).__name__,
            "device": engine.device.name,
            "world_size": self._crew.size,
            "layout": asdict(self.context.layout) if self.context else {},
        }
        self._attempt = _Attempt(step, attempt, manifest, protected)
        self._attempt.thread = threading.Thread(
            target=self._write, args=(self._attempt, pieces), name="checkpoint", daemon=True
        )
        self._attempt.thread.start()
        if not self.asynchronous:
            self.finish()

    def _is_saved(self, step: int, manifest: dict[str, Any]) -> bool:
        path = step_folder(self.folder, step)
        if not path.exists():
            return False
        if not (path / MANIFEST).is_file():  # never published, or damaged: nothing that a run can resume from
            path.rename(path.with_name(f"{path.name}.incomplete-{time.time_ns()}"))
            return False
        there = ResumeFolder(path).manifest
        if all(there.get(key) == manifest[key] for key in ("step", "updates", "extra")):
            return True
        raise UserError(
            f"checkpoint {path} exists already, of another run: after {there.get('updates')} updates where this one "
            f"has taken {manifest['updates']}; choose another output folder or remove it"
        )

    def _write(self, attempt: _Attempt, pieces: list[StatePiece]) -> None:
        """In the thread: this rank's file, durable."""
        path = attempt.folder / f"rank-{self._crew.rank:05d}.safetensors"
        try:
            written = write_pieces(path, pieces, between=lambda: self._at_stage("writing", attempt.folder))
            self._at_stage("durable", attempt.folder)
            attempt.written = written
        except Exception as error:
            attempt.failure = _describe(error, path, self._crew.rank)

    def poll(self) -> Path | None:
        """At a step boundary: publish the save under way if every rank's part is durable.

        Returns:
            the folder if one has just been published.

        Raises:
            SaveError: a rank could not write its part; the attempt is removed.
        """
        attempt = self._attempt
        if attempt is None:
            return None
        code = self._crew.least(attempt.code)
        if code == 0:
            return None
        self._attempt = None
        if attempt.thread is not None:
            attempt.thread.join()
        failures = self._crew.findings([attempt.failure] if attempt.failure else [])
        if not failures:
            files = self._crew.gather(attempt.written)
            try:
                return self._crew.on_first(lambda: self._publish(attempt, [file for file in files if file is not None]))
            except OSError as error:
                failures = [_describe(error, attempt.folder, 0)]
            except UserError as error:
                failures = [str(error)]
        shutil.rmtree(attempt.folder, ignore_errors=True)
        before = published(self.folder)
        last = f"the last good checkpoint is {before[-1]}" if before else "there is no earlier checkpoint"
        raise SaveError(f"the checkpoint of step {attempt.step} is not saved: {'; '.join(failures)}. {last}")

    def finish(self) -> Path | None:
        """Wait for the save under way, and publish it; as `poll` otherwise."""
        if self._attempt is not None and self._attempt.thread is not None:
            self._attempt.thread.join()
        return self.poll()

    def _publish(self, attempt: _Attempt, files: list[WrittenFile]) -> Path:
        """On rank 0: index, manifest, rename, removal of the oldest."""
        unseen = [file.name for file in files if not (attempt.folder / file.name).exists()]
        if unseen:
            raise UserError(
                f"{attempt.folder}: {', '.join(unseen)} of other ranks cannot be seen by rank 0; the output folder has "
                "to be on a file system that all machines share"
            )
        files = [*files, write_index(attempt.folder, files)]
        recorded = {file.name: {"size": file.size, "hash": file.hash} for file in files}
        saved_at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        write_manifest(attempt.folder, attempt.manifest | {"saved_at": saved_at, "files": recorded})
        _sync_folder(attempt.folder)
        self._at_stage("indexed", attempt.folder)
        final = step_folder(self.folder, attempt.step)
        attempt.folder.rename(final)
        _sync_folder(self.folder)
        self._at_stage("published", final)
        stays = None if attempt.protected is None else step_folder(self.folder, attempt.protected)
        for old in published(self.folder)[: -self.keep] if self.keep else []:
            if old == stays:
                continue
            # Out of sight in one step: what is being removed is never taken for a checkpoint.
            hidden = old.with_name(f".{old.name}.saving-{_owner()}")
            old.rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)
        self._at_stage("pruned", final)
        return final

    def latest(self) -> Path | None:
        """The newest published checkpoint. Remains of saves whose process is gone are removed on the way."""

        def look() -> Path | None:
            _remove_abandoned(self.folder)
            found = published(self.folder)
            return found[-1] if found else None

        return self._crew.on_first(look)

    def of_step(self, step: int) -> Path:
        """Where the checkpoint of a step is, if it is there."""
        return step_folder(self.folder, step)

    def load(self, engine: Engine, path: Path | None = None, *, optimizer: bool = True) -> dict[str, Any] | None:
        """Give the engine the state of a checkpoint, whatever layout, world size and engine it was saved with.

        The random state is restored where there are as many ranks as there were, on the same kind of device.

        Args:
            engine: to be filled.
            path: a checkpoint's folder; the latest if None.
            optimizer: whether moments are loaded too.

        Returns:
            the run's own state (`extra`), or None if no path was given and there is no checkpoint.

        Raises:
            UserError: the checkpoint is missing, damaged, or of another model; nothing has been changed then.
        """
        path = self.latest() if path is None else path
        if path is None:
            return None
        folder = self._open(path)
        self._check_fit(folder, engine, optimizer)
        failures: list[str] = []

        def read(wanted: StatePiece) -> Tensor | None:
            try:
                return folder.read(wanted)
            except OSError as error:  # told after the engine's collectives, which every rank has to reach
                failures.append(f"{wanted.key}: {error}")
                return None

        engine.load_state(read, optimizer=optimizer)
        if found := self._crew.findings(failures):
            raise folder.refuse(found)
        if optimizer:
            engine.set_updates(folder.manifest["updates"])
        self._restore_random_state(folder, engine)
        return folder.manifest["extra"]

    def _open(self, path: Path) -> ResumeFolder:
        """Open and check: each rank reads through its share of the files."""
        self._crew.on_first(lambda: ResumeFolder(path).step)
        folder = ResumeFolder(path)
        mine = folder.files[self._crew.rank :: self._crew.size]
        found = self._crew.findings([finding for name in mine if (finding := folder.check_file(name))])
        if found:
            raise folder.refuse(found)
        return folder

    def _check_fit(self, folder: ResumeFolder, engine: Engine, optimizer: bool) -> None:
        """That every piece the model wants is there, and everything there is wanted."""
        faults: list[str] = []
        wanted: set[str] = set()

        def note(piece: StatePiece) -> None:
            wanted.add(piece.key)
            if fault := folder.check_piece(piece):
                faults.append(fault)

        engine.load_state(note, optimizer=optimizer)
        stored = [key for key in folder.tensors if not key.startswith(f"{RANDOM_STATE}/")]
        stored = stored if optimizer else [key for key in stored if key.startswith("weight/")]
        used = self._crew.largest(torch.tensor([key in wanted for key in stored], dtype=torch.uint8))
        faults += [
            f"{key} is in the checkpoint, not in the model" for key, use in zip(stored, used, strict=True) if not use
        ]
        if found := self._crew.findings(faults):
            shown = "".join(f"\n  - {fault}" for fault in found[:10])
            more = f"\n  - and {len(found) - 10} more" if len(found) > 10 else ""
            raise UserError(
                f"checkpoint {folder.path} is of another model ({len(found)} differences):{shown}{more}\n"
                "resume with the model it was saved from, or choose another output folder"
            )

    def _restore_random_state(self, folder: ResumeFolder, engine: Engine) -> None:
        ranks, kind = folder.manifest["world_size"], folder.manifest.get("device", engine.device.name)
        if (ranks, kind) != (self._crew.size, engine.device.name):
            self._say(
                f"random draws (dropout) begin anew: {folder.path.name} holds those of {counted(ranks, 'rank')} on "
                f"{kind}, not of {counted(self._crew.size, 'rank')} on {engine.device.name}"
            )
            return
        state = folder.tensors.get(f"{RANDOM_STATE}/rank-{self._crew.rank}")
        if state is not None:
            piece = StatePiece(RANDOM_STATE, Piece.whole(f"rank-{self._crew.rank}", state.shape))
            engine.device.set_random_state(folder.read(piece).clone())


def _random_state(rank: int, state: Tensor) -> StatePiece:
    return StatePiece(RANDOM_STATE, Piece.whole(f"rank-{rank}", tuple(state.shape)), state.clone())


def _host_copy(tensor: Tensor) -> Tensor:
    """A copy on the host, contiguous; also of a host tensor, which the next step would overwrite."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _describe(error: Exception, path: Path, rank: int) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    text = f"rank {rank} could not write {path}: {reason}"
    if isinstance(error, OSError) and path.parent.exists():
        text += f" ({shutil.disk_usage(path.parent).free:,} bytes are free there)"
    return text


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename outlives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _owner() -> str:
    """This process, told apart from any other that had or will have its number: host-pid-start."""
    return f"{socket.gethostname()}-{os.getpid()}-{_started(os.getpid())}"


def _started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None if there is none of that number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _remove_abandoned(folder: Path) -> None:
    """Remove hidden folders whose process is gone; of another machine's, those that nothing has touched for an hour."""
    for remains in folder.glob(".step-*.saving-*"):
        host, pid, start = remains.name.partition(".saving-")[2].rsplit("-", 2)
        if host == socket.gethostname():
            abandoned = _started(int(pid)) != start
        else:
            latest = max(entry.stat().st_mtime for entry in [remains, *remains.iterdir()])
            abandoned = time.time() - latest > _ABANDONED_SECONDS
        if abandoned:
            shutil.rmtree(remains, ignore_errors=True)
