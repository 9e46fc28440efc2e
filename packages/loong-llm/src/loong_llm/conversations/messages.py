"""A conversation: messages in OpenAI's form, checked, and in the one form in which templates get them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loong_core.json_text import parse_json

Message = dict[str, Any]

_ROLES = {"developer": "system", "function": "tool"}
_KNOWN_ROLES = ("system", "user", "assistant", "tool")
_MEDIA = ("image", "image_url", "input_image", "video", "video_url", "audio", "input_audio", "audio_url")


class BadSample(Exception):
    """A record that is no conversation to train on; the message says what is wrong and what to do."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Conversation:
    """One conversation.

    Attributes:
        messages: dicts with `role` (system, user, assistant, tool), `content` (a string) and, where they have them,
            `tool_calls` (each `{"type": "function", "function": {"name", "arguments": dict}}`), `tool_call_id`,
            `reasoning_content` and other fields that templates may read.
        tools: JSON schemas of the tools on offer, or None.
        trained: whether each message is trained on if it is the assistant's (OpenAI's `weight`).
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    trained: list[bool] = field(default_factory=list)

    @property
    def assistant_turns(self) -> list[int]:
        """Indices of the assistant's messages that are trained on."""
        return [
            index
            for index, message in enumerate(self.messages)
            if message["role"] == "assistant" and self.trained[index]
        ]


def conversation(messages: Any, tools: Any = None) -> Conversation:
    """Check messages and bring them to the form that templates expect.

    Args:
        messages: a list of messages as in OpenAI's chat API.
        tools: a list of tools, or its JSON text, or nothing.

    Raises:
        BadSample: an empty or misshapen message, roles out of order, an image part, nothing that the assistant says.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise BadSample("empty", f"no messages: expected a list of messages, found {_shown(messages)}")
    clean = [_message(index, message) for index, message in enumerate(messages)]
    if clean[0]["role"] == "system" and not clean[0]["content"].strip():
        clean = clean[1:]
    _check_order(clean)
    trained = [message.pop("weight", 1) not in (0, False) for message in clean]
    checked = Conversation(clean, _tools(tools), trained)
    if not checked.assistant_turns:
        has_any = any(message["role"] == "assistant" for message in clean)
        why = "every assistant message has weight 0" if has_any else "no message is the assistant's"
        raise BadSample("untrained", f"nothing to train on: {why}; leave the sample out")
    return checked


def _message(index: int, message: Any) -> Message:
    if not isinstance(message, Mapping):
        raise BadSample("fields", f"message {index} is {_shown(message)}, expected an object with role and content")
    clean = {key: value for key, value in message.items() if value is not None}
    role = clean.get("role")
    if not role:
        raise BadSample("fields", f"message {index} has no role; its fields are {_names(message)}")
    role = _ROLES.get(role, role)
    if role not in _KNOWN_ROLES:
        known = ", ".join(_KNOWN_ROLES)
        raise BadSample("roles", f"message {index} has the unknown role {role!r}; known are {known}")
    clean["role"] = role
    calls = clean.pop("tool_calls", None)
    if role == "assistant" and calls:
        clean["tool_calls"] = [_tool_call(index, call) for call in calls]
    content = _text(index, clean.get("content", ""))
    may_be_empty = role in ("system", "tool") or "tool_calls" in clean
    if not content.strip() and not may_be_empty:
        missing = "no content" if "content" not in clean else "empty content"
        raise BadSample("empty", f"message {index} ({role}) has {missing}; fill it in or leave the sample out")
    clean["content"] = content
    return clean


def _text(index: int, content: Any) -> str:
    """A message's content as one string; lists of text parts are joined."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise BadSample("fields", f"message {index} has {_shown(content)} as content, expected a string")
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        if kind in _MEDIA:
            raise BadSample(
                "media",
                f"message {index} holds an {kind} part, and this run is for text only; leave such samples out, or "
                "train a vision-language model with loong-vlm",
            )
        text = part.get("text") if isinstance(part, Mapping) else part
        if kind != "text" or not isinstance(text, str):
            raise BadSample("fields", f"message {index} holds a part of type {kind!r} without text")
        texts.append(text)
    return "".join(texts)


def _tool_call(index: int, call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadSample("tools", f"message {index} has a tool call without a function name: {_shown(call)}")
    arguments = function.get("arguments")
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments) if arguments.strip() else {}
        except json.JSONDecodeError as error:
            raise BadSample(
                "tools", f"message {index}: the arguments of {function['name']} are not JSON ({error})"
            ) from error
    if not isinstance(arguments, Mapping):
        raise BadSample(
            "tools", f"message {index}: the arguments of {function['name']} are {_shown(arguments)}, expected an object"
        )
    clean: dict[str, Any] = {"type": "function", "function": {"name": function["name"], "arguments": dict(arguments)}}
    if isinstance(call.get("id"), str):
        clean["id"] = call["id"]
    return clean


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    if isinstance(tools, str):
        try:
            tools = parse_json(tools) if tools.strip() else None
        except json.JSONDecodeError as error:
            raise BadSample("tools", f"the tools are not JSON ({error})") from error
    if not tools:
        return None
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadSample("tools", f"tools are {_shown(tools)}, expected a list of JSON schemas")
    whole = [dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)} for tool in tools]
    for tool in whole:
        if not isinstance(tool["function"], Mapping) or "name" not in tool["function"]:
            raise BadSample("tools", f"a tool has no name: {_shown(tool)}")
    return whole


_FOLLOWS = {
    None: ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}


def _check_order(messages: list[Message]) -> None:
    before = None
    offered: set[str] = set()
    for index, message in enumerate(messages):
        role = message["role"]
        if role not in _FOLLOWS[before]:
            expected = " or ".join(_FOLLOWS[before])
            place = f"after {before}" if before else "first"
            raise BadSample(
                "roles", f"roles out of order: message {index} is the {role}'s {place}, expected {expected}"
            )
        if role == "tool" and before == "assistant" and "tool_calls" not in messages[index - 1]:
            raise BadSample("roles", f"roles out of order: message {index} is a tool's, but no tool was called before")
        if role == "assistant":
            offered = {call["id"] for call in message.get("tool_calls", []) if "id" in call}
        answered = message.get("tool_call_id")
        if role == "tool" and answered is not None and offered and answered not in offered:
            raise BadSample("tools", f"message {index} answers the tool call {answered!r}, which was not made before")
        before = role


def _names(record: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in list(record)[:8]) or "none"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
