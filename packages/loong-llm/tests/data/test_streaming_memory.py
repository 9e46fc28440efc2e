"""A file larger than the memory that is allowed is prepared and streamed: the benchmark of 4 GB, at 64 MB."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
MEGABYTES, LIMIT = 64, 40


@pytest.mark.parametrize("kind", ["documents", "conversations"])
def test_neither_the_file_nor_its_tokens_are_held(kind, tmp_path):
    arguments = [kind, "--megabytes", str(MEGABYTES), "--limit", str(LIMIT), "--steps", "50", "--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench.streaming_memory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "file_megabytes 64" in done.stdout
    assert "streamed_tokens 819200" in done.stdout


def test_the_limit_ends_whoever_holds_the_file(tmp_path):
    (tmp_path / "text").write_bytes(bytes(MEGABYTES * 10**6))
    code = (
        "import resource, sys; from pathlib import Path; from tools.bench.streaming_memory import own_memory; "
        f"limit = own_memory() + {LIMIT} * 2**20; resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)); "
        "Path(sys.argv[1]).read_bytes()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "text")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "MemoryError" in done.stderr
