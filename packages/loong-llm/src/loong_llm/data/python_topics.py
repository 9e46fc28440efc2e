"""The English reference text inside CPython, as documents: what the quickstart trains on.

`pydoc_data.topics` holds the language reference that `help("topics")` shows, half a megabyte of text written by people.
Each topic is one document, as written. Some topics repeat whole paragraphs of others (`compound` contains `if`, `for`,
`class`, ...); those stand on the same side of the split, so no held-out paragraph is ever trained on.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_SHARE = 0.1
"""About how much of the text is held out."""

_LARGEST_SHARE = 0.025
"""Held-out groups are at most so large, so that many topics are held out and not one or two."""

_PARAGRAPH = 40
"""Characters from which on a paragraph that two topics share makes them belong together."""


@dataclass(frozen=True)
class TopicFiles:
    """Where the two parts were written, as JSON lines with `topic` and `text`."""

    train: Path
    held_out: Path


def python_topics() -> tuple[dict[str, str], dict[str, str]]:
    """Topics to train on and topics held out, each from name to text, in the order of their names."""
    from pydoc_data.topics import topics

    total = sum(map(len, topics.values()))
    chosen: set[str] = set()
    size = 0
    for group in sorted(_groups(topics), key=lambda names: hashlib.sha256(names[0].encode("utf-8")).digest()):
        grown = size + sum(len(topics[name]) for name in group)
        if grown - size <= total * _LARGEST_SHARE and grown <= total * HELD_OUT_SHARE:
            chosen.update(group)
            size = grown
    train = {name: topics[name] for name in sorted(topics) if name not in chosen}
    return train, {name: topics[name] for name in sorted(chosen)}


def paragraphs(text: str) -> set[str]:
    """The paragraphs of a topic that are long enough to tell whether another topic has them too."""
    joined = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return {paragraph for paragraph in joined if len(paragraph) >= _PARAGRAPH}


def _groups(topics: dict[str, str]) -> list[list[str]]:
    """Names of topics that share paragraphs, directly or through others, each group sorted."""
    group_of: dict[str, list[str]] = {name: [name] for name in sorted(topics)}
    first_with: dict[str, str] = {}
    for name in sorted(topics):
        for paragraph in paragraphs(topics[name]):
            mine, other = group_of[name], group_of[first_with.setdefault(paragraph, name)]
            if other is not mine:
                other.extend(mine)
                group_of.update(dict.fromkeys(mine, other))
    return [sorted(group) for group in {id(group): group for group in group_of.values()}.values()]


def write_python_topics(folder: Path) -> TopicFiles:
    """Write both parts into `folder` (made if need be), which a run file can then name."""
    folder.mkdir(parents=True, exist_ok=True)
    files = TopicFiles(folder / "train.jsonl", folder / "held_out.jsonl")
    for path, topics in zip((files.train, files.held_out), python_topics()):
        lines = [json.dumps({"topic": name, "text": text}, ensure_ascii=False) + "\n" for name, text in topics.items()]
        path.write_text("".join(lines), encoding="utf-8")
    return files
