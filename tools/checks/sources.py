"""The tracked Python files of the workspace, parsed once."""

from __future__ import annotations

import ast
import functools
import pathlib
import subprocess
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]


@functools.cache
def tracked(pattern: str = "") -> tuple[pathlib.Path, ...]:
    """Paths of the files that git tracks or would track, relative to the root, that match a glob pattern."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *([pattern] if pattern else [])]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return tuple(path for name in sorted(set(names)) if (ROOT / (path := pathlib.Path(name))).is_file())


def library_files(package: str | None = None) -> Iterator[pathlib.Path]:
    """The modules that ship in wheels (no tests), of one package or of all."""
    for path in tracked("*.py"):
        parts = path.parts
        if len(parts) > 3 and parts[0] == "packages" and parts[2] == "src" and package in (None, parts[1]):
            yield path


@functools.cache
def tree(path: pathlib.Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


def imports(path: pathlib.Path) -> Iterator[tuple[int, str, bool]]:
    """Each import of a file: line, dotted module, and whether it stands at module level."""
    top = {id(node) for node in tree(path).body}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module, id(node) in top
