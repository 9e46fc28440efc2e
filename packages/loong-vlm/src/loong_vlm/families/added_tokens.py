"""Ids of special tokens, read from a tokenizer's files without opening the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def added_token(folder: Path, text: str) -> int | None:
    """The id of an added token by its text; None where no file of the folder tells it."""
    own = _read(folder / "added_tokens.json")
    if isinstance(own.get(text), int):
        return own[text]
    for entry in _read(folder / "tokenizer.json").get("added_tokens") or []:
        if entry.get("content") == text:
            return int(entry["id"])
    for number, entry in (_read(folder / "tokenizer_config.json").get("added_tokens_decoder") or {}).items():
        if entry.get("content") == text:
            return int(number)
    return None


def _read(file: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none that can be read (opening the tokenizer tells of it)."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
