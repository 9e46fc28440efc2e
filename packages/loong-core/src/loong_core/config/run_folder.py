"""The folder of a run: what is where, and whether an existing one belongs to this configuration."""

from __future__ import annotations

import fcntl
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TextIO

import yaml

from loong_core.config.files import unwritable
from loong_core.config.section import MAY_CHANGE, Section, field_section
from loong_core.config.yaml_text import read_document
from loong_core.errors import ConfigError, Fault, UserError


@dataclass(frozen=True)
class RunFolder:
    """Paths inside `output`."""

    root: Path

    @property
    def run_yaml(self) -> Path:
        """The resolved configuration: every key with its value, loadable as a run file."""
        return self.root / "run.yaml"

    @property
    def metrics(self) -> Path:
        """One JSON object a step."""
        return self.root / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Resume checkpoints."""
        return self.root / "checkpoints"

    def after_a_crash(self) -> str:
        """What to do when a run has ended without saving."""
        last = max((path.parent for path in self.checkpoints.glob("step-*/manifest.json")), default=None)
        where = f"the last checkpoint, {last}" if last else "the start: there is no checkpoint yet"
        return f"give the same command again to resume from {where}"

    @property
    def hf(self) -> Path:
        """The trained model in Hugging Face form, written at the end."""
        return self.root / "hf"

    @property
    def adapter(self) -> Path:
        """The trained adapters in PEFT's form, written at the end in place of `hf` where only adapters are trained."""
        return self.root / "adapter"

    @property
    def export_request(self) -> Path:
        """Where this file is, the run writes its model after the step that it is at, and removes the file."""
        return self.root / "export"

    def export_of(self, step: int) -> Path:
        """The model after a step, in Hugging Face form, where it was asked for."""
        return self.root / "exports" / f"step-{step:08d}"

    @property
    def logs(self) -> Path:
        """`rank-N.log` of each rank."""
        return self.root / "logs"

    @property
    def profile(self) -> Path:
        """Traces and memory snapshots."""
        return self.root / "profile"

    @property
    def router_choices(self) -> Path:
        """Which experts routers chose, a folder a step, where that is recorded."""
        return self.root / "router_choices"

    def faults(self, config: Section) -> list[Fault]:
        """Why `config` may not continue the run that is in this folder; empty where it may, or there is none."""
        if (fault := unwritable("output", str(self.root))) is not None:
            return [fault]
        made = [path for path in (self.hf, self.adapter) if path.exists()]
        made += [path for path in (self.checkpoints,) if path.is_dir() and any(path.glob("step-*"))]
        made += [path for path in (self.metrics,) if path.is_file() and path.stat().st_size]
        if not made:
            return []  # what a start that was refused has left belongs to nobody
        if not self.run_yaml.exists():
            what = f"{self.root} has {made[0].name} but no run.yaml, so it is not known whose they are"
            return [Fault("output", what, "name another folder")]
        old, unreadable = read_document(self.run_yaml)
        damaged = [*unreadable, *_misshapen(type(config), old)] if old or unreadable else [Fault("", "is empty")]
        if damaged:
            place = f"{damaged[0].where} " if damaged[0].where not in ("", str(self.run_yaml)) else ""
            what = f"{self.run_yaml} is damaged: {place}{damaged[0].what}; so it is not known whose {made[0].name} is"
            return [Fault("output", what, "restore that file, or name another folder")]
        return [
            Fault(key, f"the run in {self.root} has {before!r}, this configuration {now!r}", _WAY_OUT)
            for key, before, now in differences(type(config), old, config.model_dump(mode="json"))
        ]

    @property
    def in_use(self) -> bool:
        """Whether a process is training in it."""
        try:
            with (self.root / ".lock").open() as lock:
                return not _locked(lock, 0.0)
        except OSError:
            return False

    def claim(self, config: Section, *, patience: float = 60.0) -> TextIO:
        """Take the folder for a run of `config` and write `run.yaml`, atomically.

        Two processes never train in one folder: the returned file holds a lock on it until it is closed or the
        process ends. A run that was just killed may still be saving; it is waited for up to `patience` seconds.

        Raises:
            ConfigError: the folder holds another run.
            UserError: another process is training in it, or it cannot be written.
        """
        if faults := self.faults(config):
            raise ConfigError(faults)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = (self.root / ".lock").open("w")
        except OSError as error:
            raise UserError(f"output: cannot write in {self.root}: {error.strerror}; name another folder") from error
        if not _locked(lock, 0) and not self._waited_for(lock, patience):
            lock.close()
            raise UserError(
                f"output: another process is training in {self.root}; wait until it has ended, or name another folder"
            )
        text = "# Written by loong: the resolved configuration of this run.\n" + yaml.safe_dump(
            config.model_dump(mode="json"), sort_keys=False, allow_unicode=True
        )
        temporary = self.run_yaml.with_suffix(".tmp")
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, self.run_yaml)
        except OSError as error:
            lock.close()
            raise UserError(f"output: cannot write {self.run_yaml}: {error.strerror}; name another folder") from error
        return lock

    def _waited_for(self, lock: TextIO, patience: float) -> bool:
        """Whether the process that trains here has ended within so many seconds."""
        if patience:
            print(f"another process is training in {self.root}; waiting {patience:g} s for its end", file=sys.stderr)
        return _locked(lock, patience)


def _locked(file: TextIO, patience: float) -> bool:
    deadline = monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if monotonic() >= deadline:
                return False
            sleep(0.1)


def _misshapen(section: type[Section], values: dict[str, Any], prefix: str = "") -> list[Fault]:
    """Sections that are no mappings: a file that was edited or torn, not one that an older version wrote."""
    found = []
    for name, field in section.model_fields.items():
        inner, value = field_section(field), values.get(name)
        if inner is None or inner[1] or value is None:
            continue
        if isinstance(value, dict):
            found += _misshapen(inner[0], value, f"{prefix}{name}.")
        else:
            found.append(Fault(f"{prefix}{name}", f"is {value!r}; a mapping is wanted"))
    return found


_WAY_OUT = "resume with the old value, or name another output"


def differences(section: type[Section], old: Any, new: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Keys that may not change and whose values differ, as (key, old, new). Both are dumped configurations.

    A key that the old file lacks, because an older version wrote it, had what is now the default.
    """
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [] if old == new else [(prefix.rstrip("."), old, new)]
    found: list[tuple[str, Any, Any]] = []
    defaults = section.model_construct().model_dump(mode="json")
    for name, field in section.model_fields.items():
        if MAY_CHANGE in field.metadata:
            continue
        before, now = old.get(name, defaults[name]), new[name]
        inner = field_section(field)
        if inner is not None and not inner[1]:
            found += differences(inner[0], before, now, f"{prefix}{name}.")
        elif before != now:
            found.append((f"{prefix}{name}", before, now))
    return found
