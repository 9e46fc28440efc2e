"""Reading JSON that someone else wrote: whatever is wrong with it is one kind of error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loong_core.errors import UserError


def parse_json(text: str | bytes) -> Any:
    """The value that `text` holds.

    Raises:
        json.JSONDecodeError: it is not JSON, or holds what Python cannot (nesting by the thousand, numbers of thousands
            of digits).
        UnicodeDecodeError: its bytes are no text.
    """
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", "", 0) from None
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from None


def read_json_object(file: Path) -> dict[str, Any]:
    """A JSON object from a file in UTF-8.

    Raises:
        UserError: the file is not there, cannot be read, or does not hold one.
    """
    try:
        value = parse_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file} is missing") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{file} holds a {type(value).__name__}, not a JSON object")
    return value
