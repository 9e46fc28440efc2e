"""Try what the documentation says: `python -m tools.docs [FILE.md ...]`.

Each fenced block marked `bash` is run, in order, in a scratch folder that holds the repository's `examples/`; `uv run`
is dropped, since this program already runs in the environment that `uv run` would give. A block marked `bash no-run`
(it needs a GPU, several machines, or installs something) is not run, but the subcommands it names must exist. Local
links must lead somewhere, and README_zh.md must show the very commands of README.md.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).parents[1]
BLOCK = re.compile(r"^```bash( no-run)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
COMMANDS = ("loong", "loong-llm", "loong-vlm", "loong-vla", "loong-dit")
LIMIT_SECONDS = 600


@dataclass(frozen=True)
class Block:
    """A fenced block of shell commands: where it stands, whether it is to be run, and its text."""

    where: str
    run: bool
    text: str


def blocks(path: pathlib.Path) -> Iterator[Block]:
    """The shell blocks of a document."""
    source = path.read_text(encoding="utf-8")
    for match in BLOCK.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        yield Block(f"{path.relative_to(ROOT)}:{line}", not match[1], match[2])


def run(block: Block, folder: pathlib.Path) -> Iterator[str]:
    """Run a block as one script; a failing command ends it."""
    script = "set -euo pipefail\n" + re.sub(r"\buv run (?!nox)", "", block.text)
    start = time.perf_counter()
    environment = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    try:
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        yield f"{block.where}: not done within {LIMIT_SECONDS} s"
        return
    print(f"{block.where}: {time.perf_counter() - start:.1f} s, status {done.returncode}", flush=True)
    if done.returncode:
        yield f"{block.where}: status {done.returncode}\n{block.text}\n{(done.stdout + done.stderr)[-3000:]}"


def unknown_commands(block: Block) -> Iterator[str]:
    """Subcommands named by a block that is not run, but that do not exist."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for command, subcommand in itertools.pairwise(words):
            if command in COMMANDS and not subcommand.startswith("-"):
                executable = pathlib.Path(sys.executable).with_name(command)
                if subprocess.run([executable, subcommand, "--help"], capture_output=True).returncode:
                    yield f"{block.where}: there is no `{command} {subcommand}`"


def broken_links(path: pathlib.Path) -> Iterator[str]:
    """Links to files that are not there."""
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        if "://" not in target and not (path.parent / target).exists():
            yield f"{path.relative_to(ROOT)}: the link to {target} leads nowhere"


def main() -> int:
    """Check the documents named, or README, docs/ and each package's README."""
    named = [pathlib.Path(argument).resolve() for argument in sys.argv[1:]]
    documents = named or [
        ROOT / "README.md",
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("packages/*/README.md")),
    ]
    faults: list[str] = []
    english, chinese = ([block.text for block in blocks(ROOT / name)] for name in ("README.md", "README_zh.md"))
    if english != chinese:
        faults.append("README_zh.md shows other commands than README.md")
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(ROOT / "examples", pathlib.Path(scratch) / "examples")
        for document in documents:
            faults += broken_links(document)
            for block in blocks(document):
                faults += run(block, pathlib.Path(scratch)) if block.run else unknown_commands(block)
    for fault in faults:
        print(f"fail {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
