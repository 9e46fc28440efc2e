"""`loong-llm inspect-data` shows what a run would train on, and trains nothing."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[4] / "examples" / "llm"


def inspect(tmp_path, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "loong_llm.cli.main", "inspect-data", *arguments, f"output={tmp_path / 'run'}"],
        capture_output=True,
        text=True,
    )


def test_it_shows_conversations_their_trained_tokens_and_the_packing(tmp_path):
    done = inspect(
        tmp_path,
        str(EXAMPLES / "tiny_sft.yaml"),
        "model=qwen3-0.6b",
        "tokenizer=bytes",
        f"data.train={EXAMPLES / 'tiny_conversations.jsonl'}",
        "data.validation=[]",
        "train.validate_every=null",
        "-n",
        "3",
    )
    assert done.returncode == 0, done.stderr
    assert "22 samples in 11 sequences" in done.stdout
    assert len(re.findall(r"^microbatch \d: 256 tokens in \d+ sequences, \d+ trained on", done.stdout, re.M)) == 3
    assert "Assistant:" in done.stdout
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["cache"]


def test_it_tells_what_is_wrong_with_the_data_and_shows_nothing(tmp_path):
    done = inspect(tmp_path, str(EXAMPLES / "tiny_sft.yaml"), f"data.train={tmp_path / 'none.jsonl'}")
    assert done.returncode == 2
    assert "none.jsonl" in done.stderr
    assert done.stdout == ""
