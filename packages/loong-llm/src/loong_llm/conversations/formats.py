"""The forms in which conversations are found: OpenAI messages, ShareGPT, Alpaca."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

from loong_core.json_text import parse_json
from loong_llm.conversations.messages import BadSample, Conversation, conversation

FormatName = Literal["messages", "sharegpt", "alpaca"]
FORMATS: tuple[FormatName, ...] = get_args(FormatName)

_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "function_call",
}


def detect(record: Mapping[str, Any]) -> FormatName | None:
    """The format that a record's fields speak for, None if none."""
    keys: dict[str, FormatName] = {"messages": "messages", "conversations": "sharegpt", "conversation": "sharegpt"}
    for key, name in keys.items():
        turns = _unquoted(record.get(key))
        if isinstance(turns, list) and turns and isinstance(turns[0], Mapping):
            return "sharegpt" if "from" in turns[0] else "messages" if "role" in turns[0] else name
        if key in record:
            return name
    if "instruction" in record and ("output" in record or "response" in record):
        return "alpaca"
    return None


def reader(name: FormatName, fields: Mapping[str, str]) -> Callable[[Mapping[str, Any]], Conversation]:
    """What makes a conversation of a record of this format.

    Args:
        name: the format.
        fields: our field name to the record's, where they differ, such as `{"instruction": "question"}`.

    Returns:
        A function that raises `BadSample` for a record that is no conversation.
    """
    read = {"messages": _messages, "sharegpt": _sharegpt, "alpaca": _alpaca}[name]

    def convert(record: Mapping[str, Any]) -> Conversation:
        return read(record, lambda field: record.get(fields.get(field, field)))

    return convert


def fields_of(record: Mapping[str, Any]) -> str:
    """The record's fields, for a message."""
    return ", ".join(repr(name) for name in list(record)[:8]) or "none"


_Get = Callable[[str], Any]


def _messages(record: Mapping[str, Any], get: _Get) -> Conversation:
    turns = _first(get, "messages", "conversations", "conversation")
    if turns is None:
        raise BadSample("fields", f"no field 'messages'; the fields are {fields_of(record)}")
    return conversation(_parsed(turns, "messages"), get("tools"))


def _sharegpt(record: Mapping[str, Any], get: _Get) -> Conversation:
    turns = _first(get, "conversations", "conversation")
    if turns is None:
        raise BadSample("fields", f"no field 'conversations'; the fields are {fields_of(record)}")
    turns = _parsed(turns, "conversations")
    if not isinstance(turns, Iterable) or not all(isinstance(turn, Mapping) for turn in turns):
        raise BadSample("fields", "'conversations' is not a list of objects with 'from' and 'value'")
    messages: list[dict[str, Any]] = []
    if get("system"):
        messages.append({"role": "system", "content": get("system")})
    for index, turn in enumerate(turns):
        speaker = turn.get("from")
        role = _SHAREGPT_ROLES.get(str(speaker).lower())
        if role is None:
            known = ", ".join(_SHAREGPT_ROLES)
            raise BadSample("roles", f"turn {index} is from {speaker!r}; known are {known}")
        if role == "function_call":
            call = _parsed(turn.get("value"), f"the function call of turn {index}")
            calls = call if isinstance(call, list) else [call]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls, **_weight(turn)})
        else:
            messages.append({"role": role, "content": turn.get("value"), **_weight(turn)})
    return conversation(messages, get("tools"))


def _weight(turn: Mapping[str, Any]) -> dict[str, Any]:
    return {} if turn.get("weight") is None else {"weight": turn["weight"]}


def _alpaca(record: Mapping[str, Any], get: _Get) -> Conversation:
    instruction, answer = get("instruction"), _first(get, "output", "response")
    for name, value in (("instruction", instruction), ("output", answer)):
        if not isinstance(value, str) or not value.strip():
            state = "empty" if value is not None else "missing"
            raise BadSample("empty", f"the field {name!r} is {state}; the fields are {fields_of(record)}")
    messages: list[dict[str, Any]] = []
    if get("system"):
        messages.append({"role": "system", "content": get("system")})
    for pair in _parsed(get("history"), "history") or []:
        question, reply = pair
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
    extra = get("input")
    if isinstance(extra, str) and extra.strip():
        # Alpaca's own template sets the input apart; every other gets one text.
        own = {"instruction": instruction, "input": extra}
        messages.append({"role": "user", "content": f"{instruction}\n\n{extra}", **own})
    else:
        messages.append({"role": "user", "content": instruction})
    messages.append({"role": "assistant", "content": answer})
    return conversation(messages, get("tools"))


def _first(get: _Get, *names: str) -> Any:
    return next((value for name in names if (value := get(name)) is not None), None)


def _unquoted(value: Any) -> Any:
    """A list that a CSV cell or a string column holds as JSON text, parsed; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return parse_json(value)
        except json.JSONDecodeError:
            return value
    return value


def _parsed(value: Any, what: str) -> Any:
    if isinstance(value, str):
        try:
            return parse_json(value)
        except json.JSONDecodeError as error:
            raise BadSample("fields", f"{what}: not JSON ({error})") from error
    return value
