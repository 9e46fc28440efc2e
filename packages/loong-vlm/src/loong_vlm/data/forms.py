"""Records with images and videos: the form of their conversation, and what is shown where.

Each medium's place in the text is held by a mark, so that all that loong-llm knows of conversations (forms, roles,
templates, what is trained on) applies to text with marks as it does to text.

| form | images are |
|---|---|
| `messages` | parts of a message (OpenAI's `image_url`, `image`, `video`), or `<image>` in the text as below |
| `sharegpt` | `<image>` and `<video>` in the text, `images` and `videos` beside it (LLaVA's `image` and `video` too) |
| `alpaca` | likewise |
| `caption` | one `image` and its `caption` or `text` |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from loong_llm.conversations import formats
from loong_llm.conversations.messages import BadSample, Conversation
from loong_vlm.data.batch import Kind
from loong_vlm.data.media import MediaFolder, Medium

VisionForm = Literal["messages", "sharegpt", "alpaca", "caption"]
FORMS: tuple[VisionForm, ...] = get_args(VisionForm)

_WRITTEN = re.compile(r"<(image|video)>")
_MARK = re.compile("\ue000(\\d+)\ue001")
_PARTS: dict[str, Kind] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
}
_FIELDS: dict[Kind, tuple[str, str]] = {"image": ("images", "image"), "video": ("videos", "video")}


def mark(number: int) -> str:
    """What stands in a text for medium `number`: two characters of Unicode's private use, and the number."""
    return f"\ue000{number}\ue001"


def split_at_marks(text: str) -> list[tuple[int, int, int]]:
    """Start, end and number of each mark in a text, in order."""
    return [(found.start(), found.end(), int(found.group(1))) for found in _MARK.finditer(text)]


def detect(record: Mapping[str, Any]) -> VisionForm | None:
    """The form that a record's fields speak for, None if none."""
    told = formats.detect(record)
    if told is None and any(name in record for pair in _FIELDS.values() for name in pair):
        return "caption" if isinstance(record.get("caption", record.get("text")), str) else None
    return told


Converted = tuple[Conversation, list[Medium]]


def reader(form: VisionForm, fields: Mapping[str, str]) -> Callable[[Mapping[str, Any], MediaFolder], Converted]:
    """What makes a conversation and its media of a record of this form.

    Args:
        form: the form.
        fields: our field name to the record's, where they differ.

    Returns:
        A function that raises `BadSample` for a record that is no conversation, or whose places for images are more or
        fewer than its images.
    """
    as_text = formats.reader("messages" if form == "caption" else form, {} if form == "caption" else fields)

    def convert(record: Mapping[str, Any], folder: MediaFolder) -> Converted:
        renamed = {**record, **{ours: record[theirs] for ours, theirs in fields.items() if theirs in record}}
        shown = _Shown(renamed, folder)
        if form == "caption":
            marked = shown.caption(renamed)
        else:
            key = next((key for key in ("messages", "conversations", "conversation") if key in renamed), None)
            marked = {**record, **shown.mark_alpaca(renamed)}
            if key is not None:
                marked[fields.get(key, key)] = shown.mark_turns(_unquoted(renamed[key]))
        shown.check_all_used()
        return as_text(marked), shown.media

    return convert


class _Shown:
    """Puts marks where a record shows its media, and collects these in the order of the marks."""

    def __init__(self, record: Mapping[str, Any], folder: MediaFolder) -> None:
        self.media: list[Medium] = []
        self._folder = folder
        self._beside: dict[Kind, list[Any]] = {kind: _listed(record, kind) for kind in _FIELDS}
        self._taken: dict[Kind, int] = {"image": 0, "video": 0}

    def mark_turns(self, turns: Any) -> Any:
        if not isinstance(turns, list):
            return turns
        return [self._turn(turn) if isinstance(turn, Mapping) else turn for turn in turns]

    def mark_alpaca(self, record: Mapping[str, Any]) -> dict[str, Any]:
        names = ("instruction", "input")
        return {name: self._text(record[name]) for name in names if isinstance(record.get(name), str)}

    def caption(self, record: Mapping[str, Any]) -> dict[str, Any]:
        text = record.get("caption", record.get("text"))
        shown = "".join(self._next(kind) for kind in _FIELDS for _ in self._beside[kind])
        question = record.get("prompt", "")
        user, assistant = {"role": "user", "content": shown + question}, {"role": "assistant", "content": text}
        return {"messages": [user, assistant]}

    def check_all_used(self) -> None:
        for kind, given in self._beside.items():
            if self._taken[kind] < len(given):
                raise BadSample(
                    "placeholders",
                    f"the text has {self._taken[kind]} places for {kind}s and the record {len(given)} {kind}s; write "
                    f"<{kind}> where each is shown, or leave the sample out",
                )

    def _turn(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        marked = dict(turn)
        for key in ("content", "value"):
            content = marked.get(key)
            if isinstance(content, str):
                marked[key] = self._text(content)
            elif isinstance(content, list):
                marked[key] = [self._part(part) for part in content]
        return marked

    def _part(self, part: Any) -> Any:
        kind = _PARTS.get(str(part.get("type", ""))) if isinstance(part, Mapping) else None
        if kind is None:
            text = part.get("text") if isinstance(part, Mapping) else part
            if isinstance(text, str):
                _refuse_marks(text)
            return part
        value = next((part[name] for name in (part["type"], kind, "path", "url") if part.get(name) is not None), None)
        rate = part.get("fps")
        text = self._next(kind) if value is None else self._show(self._folder.find(kind, value, _rate(rate)))
        return {"type": "text", "text": text}

    def _text(self, text: str) -> str:
        _refuse_marks(text)
        return _WRITTEN.sub(lambda found: self._next("image" if found.group(1) == "image" else "video"), text)

    def _next(self, kind: Kind) -> str:
        """The mark of the next medium that the record has beside its text."""
        given, number = self._beside[kind], self._taken[kind]
        if number >= len(given):
            raise BadSample(
                "placeholders",
                f"the text shows {kind} {number + 1}, the record has {len(given)} {kind}s; give it all of them, or "
                "leave the sample out",
            )
        self._taken[kind] += 1
        value = given[number]
        rate = value.get("fps") if isinstance(value, Mapping) else None
        return self._show(self._folder.find(kind, value, _rate(rate)))

    def _show(self, medium: Medium) -> str:
        self.media.append(medium)
        return mark(len(self.media) - 1)


def _listed(record: Mapping[str, Any], kind: Kind) -> list[Any]:
    """What a record has of a kind beside its text."""
    several, one = _FIELDS[kind]
    value = record.get(several, record.get(one))
    value = _unquoted(value)
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _rate(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 < value < 1000:
        raise BadSample("unreadable", f"a video asks for {value!r} frames per second, expected a positive number")
    return float(value)


def _refuse_marks(text: str) -> None:
    if _MARK.search(text):
        raise BadSample("placeholders", "the text holds characters U+E000 to U+E001, which are kept for images")


def _unquoted(value: Any) -> Any:
    """A list that a CSV cell or a string column holds as JSON text, parsed; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            return value
    return value
