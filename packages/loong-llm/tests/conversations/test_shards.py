"""Conversations prepared ahead: the same bytes however it went, and taken by a run as the conversations themselves."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loong_core.errors import UserError
from loong_llm.cli.main import app
from loong_llm.conversations import shards
from loong_llm.conversations.corpus import ConversationSettings, ConversationSource, open_conversations
from loong_llm.conversations.encoding import ConversationEncoder, RenderSettings
from loong_llm.conversations.shards import prepare_shards
from loong_llm.tokenizer import load_tokenizer


def talk(path, first, count):
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"What is {number}?"},
                {"role": "assistant", "content": f"A number, {number}."},
            ]
        }
        for number in range(first, first + count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ConversationSource(str(path))


@pytest.fixture
def encoder():
    return ConversationEncoder(load_tokenizer("bytes"), RenderSettings("plain"))


@pytest.fixture
def sources(tmp_path):
    return [talk(tmp_path / f"{number}.jsonl", 10 * number, 10) for number in range(3)]


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_bytes_do_not_depend_on_processes_or_interruptions(tmp_path, sources, encoder, monkeypatch):
    prepare_shards(sources, tmp_path / "one", encoder)
    prepare_shards(sources, tmp_path / "two", encoder, workers=2)
    prepare = shards.prepare_files
    done = []

    def ends_at_the_third(*arguments):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(prepare(*arguments))

    monkeypatch.setattr(shards, "prepare_files", ends_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        prepare_shards(sources, tmp_path / "three", encoder)
    assert not (tmp_path / "three").exists()
    monkeypatch.setattr(shards, "prepare_files", prepare)
    count, before = prepare_shards(sources, tmp_path / "three", encoder)
    assert (count.samples, before) == (30, 2)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two") == bytes_of(tmp_path / "three")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_run_takes_the_folder_as_it_takes_the_conversations(tmp_path, sources, encoder):
    prepare_shards(sources, tmp_path / "ready", encoder)

    def corpus(paths):
        own = tuple(ConversationSource(str(path)) for path in paths)
        return open_conversations(ConversationSettings(own, tmp_path / "cache", 64), encoder)

    ready, raw = corpus([tmp_path / "ready"]), corpus([tmp_path / f"{number}.jsonl" for number in range(3)])
    assert ready.train[0].store.total_tokens == sum(part.store.total_tokens for part in raw.train)
    assert ready.sequences()[0].per_epoch > 0


def test_a_bad_record_stops_with_its_line_and_leaves_no_folder(tmp_path, sources, encoder):
    Path(sources[1].path).write_text('{"messages": [}\n')
    with pytest.raises(UserError, match=r"1\.jsonl, line 1|1\.jsonl: not one readable record"):
        prepare_shards(sources, tmp_path / "ready", encoder)
    assert not (tmp_path / "ready").exists()


def test_the_command_prepares_conversations(tmp_path, sources):
    given = ["preprocess", *(source.path for source in sources), "-o", str(tmp_path / "ready"), "--tokenizer", "bytes"]
    done = CliRunner().invoke(app, [*given, "--conversations", "--chat-template", "plain"])
    assert done.exit_code == 0, done.output
    assert "30 samples" in done.output
    again = CliRunner().invoke(app, [*given, "--conversations", "--chat-template", "plain"])
    assert isinstance(again.exception, UserError)
    assert "is there already" in str(again.exception)
    wrong = CliRunner().invoke(app, [*given, "--chat-template", "plain"])
    assert "are for --conversations" in str(wrong.exception)
