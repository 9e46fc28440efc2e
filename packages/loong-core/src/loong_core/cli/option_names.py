"""Errors of commands without a run file: they name options, not the run file's keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from loong_core.errors import UserError


@contextmanager
def as_options(names: Mapping[str, str]) -> Iterator[None]:
    """Put options in the place of keys (`names`: option by key) in errors that pass."""
    try:
        yield
    except UserError as error:
        text = str(error)
        for key, option in names.items():
            text = text.replace(key, option)
        raise UserError(text) from error
