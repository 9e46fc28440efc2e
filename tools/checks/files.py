"""Names, sizes and contents of files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.checks.sources import ROOT, library_files, tracked

SAYS_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc", "tools"}
MOST_LINES = 600
REGISTRY = re.compile(r"https?://[^\s\"')]*(/simple/|pypi|packages/[0-9a-f]{2}/)", re.IGNORECASE)


def names_say_something() -> Iterator[str]:
    """A module is named after its subject."""
    for path in library_files():
        if path.stem in SAYS_NOTHING:
            yield f"{path}: name the subject"


def files_keep_to_one_subject() -> Iterator[str]:
    """A module past 600 lines holds a second subject."""
    for path in library_files():
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        if lines > MOST_LINES:
            yield f"{path}: {lines} lines, look for the second subject"


def no_address_of_a_registry() -> Iterator[str]:
    """No file names a package registry's host: each machine has its own."""
    for path in tracked():
        if path.suffix in {".py", ".toml", ".md", ".yaml", ".yml", ".cfg", ".txt", ".json"} or path.parts[0] == ".ci":
            for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
                if REGISTRY.search(line):
                    yield f"{path}:{number}: an address of a package registry"
