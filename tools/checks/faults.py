"""The table of docs/faults.md names tests that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.checks.sources import ROOT

TABLE = ROOT / "docs" / "faults.md"
ROW = re.compile(r"^\| (\d+) \| .* \| .* \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"(\w+):(\S+\.py)::(\w+)")


def every_situation_has_its_test() -> Iterator[str]:
    """Each row names one test or more, and rows are numbered without a gap."""
    rows = ROW.findall(TABLE.read_text(encoding="utf-8"))
    if [int(number) for number, _ in rows] != list(range(1, len(rows) + 1)):
        yield "docs/faults.md: the rows are not numbered 1, 2, 3"
    for number, tests in rows:
        named = TEST.findall(tests)
        if len(named) != len(tests.split()):
            yield f"docs/faults.md, row {number}: write each test as package:file::test"
        for package, file, test in named:
            path = ROOT / "packages" / f"loong-{package}" / "tests" / file
            if not path.is_file():
                yield f"docs/faults.md, row {number}: there is no {path.relative_to(ROOT)}"
            elif f"def {test}(" not in path.read_text(encoding="utf-8"):
                yield f"docs/faults.md, row {number}: {path.relative_to(ROOT)} has no {test}"
