"""Each package has its own version, and its siblings' ranges admit it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from tools.checks.sources import ROOT

MEMBERS = {path.parent: tomllib.loads(path.read_text()) for path in sorted(ROOT.glob("packages/*/pyproject.toml"))}


def every_package_is_complete() -> Iterator[str]:
    """A package has a README, a CHANGELOG, tests, and a typing marker."""
    for folder in MEMBERS:
        module = folder / "src" / folder.name.replace("-", "_")
        for needed in (folder / "README.md", folder / "CHANGELOG.md", folder / "tests", module / "py.typed"):
            if not needed.exists():
                yield f"{needed.relative_to(ROOT)} is missing"


def changelog_tells_the_version() -> Iterator[str]:
    """The newest CHANGELOG entry is the package's version."""
    for folder, project in MEMBERS.items():
        newest = re.search(r"^## (\S+)", (folder / "CHANGELOG.md").read_text(), re.MULTILINE)
        version = project["project"]["version"]
        if not newest or newest.group(1) != version:
            yield f"{folder.name}: version {version}, but CHANGELOG.md tells of {newest.group(1) if newest else 'none'}"


def ranges_admit_the_siblings() -> Iterator[str]:
    """A dependency on a sibling is a range `>=A,<B` that admits the sibling's present version."""
    versions = {folder.name: _numbers(project["project"]["version"]) for folder, project in MEMBERS.items()}
    for folder, project in MEMBERS.items():
        for requirement in project["project"].get("dependencies", []):
            sibling = re.match(r"loong-\w+", requirement)
            if not sibling:
                continue
            bounds = re.fullmatch(r"loong-\w+>=([\d.]+),<([\d.]+)", requirement)
            if not bounds or not _numbers(bounds[1]) <= versions[sibling[0]] < _numbers(bounds[2]):
                yield f"{folder.name}: {requirement!r} does not admit {sibling[0]} {versions[sibling[0]]}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
