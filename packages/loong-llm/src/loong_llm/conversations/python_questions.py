"""Questions and answers from the reference texts inside CPython: what the fine-tuning quickstart learns from.

Answers are sentences that people wrote: the language reference in `pydoc_data.topics` (what a section is about, what a
special method or attribute is, what the grammar of a construct is) and the docstrings of the built-in functions,
types, methods, exceptions and some modules. Questions about a topic stand on the topic's side of the split that
pretraining uses (`loong_llm.data.python_topics`), docstrings with those of their type or module; an answer that stands
on both sides is not trained on.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import inspect
import json
import re
import types
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from loong_llm.data.python_topics import HELD_OUT_SHARE, python_topics

_ANSWER = 150
"""Characters after which an answer ends with its sentence; with one sentence it may be half as long again."""
_SHORTEST = 20
_LOOSE = "exceptions or functions"

_MODULES = (
    *("bisect", "collections", "functools", "heapq", "itertools", "json", "math", "operator", "os", "os.path"),
    *("random", "re", "shutil", "statistics", "string", "textwrap", "time"),
)
"""Modules beside the built-ins whose functions are asked about."""

_HEADING = re.compile(
    r"^(?P<title>\S[^\n]{2,70})\n([*=\-~^\"])\2{2,}\n\n(?P<body>.+?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL
)
_ENTRY = re.compile(
    r"^(?P<indent> *)(?P<name>[A-Za-z_][\w.]*(?:\([^\n]*\))?)\n\n"
    r"(?P<body>(?P=indent)   \S[^\n]*(?:\n(?P=indent)   \S[^\n]*)*)",
    re.MULTILINE,
)
_RULE = re.compile(r"^ {3}(?P<name>\w+) +::= (?P<body>[^\n]+(?:\n {6,}[^\n:]+(?!::=))*)", re.MULTILINE)


@dataclass(frozen=True)
class Question:
    """A question and its answer.

    Attributes:
        about: a topic, or the built-in type or module whose docstring answers.
        question: as a user asks it.
        answer: what the assistant says.
        text: the part of the answer that was taken from the reference.
    """

    about: str
    question: str
    answer: str
    text: str

    def as_record(self) -> dict[str, object]:
        """In OpenAI's form, as a line of a file."""
        messages = [{"role": "user", "content": self.question}, {"role": "assistant", "content": self.answer}]
        return {"about": self.about, "messages": messages}


@dataclass(frozen=True)
class QuestionFiles:
    """Where the two parts were written, as JSON lines of OpenAI messages."""

    train: Path
    held_out: Path


def python_questions() -> tuple[list[Question], list[Question]]:
    """Questions to train on and questions held out, in an order that depends on the interpreter's texts alone."""
    training_topics, held_out_topics = python_topics()
    train = [question for name, text in training_topics.items() for question in _of_topic(name, text)]
    held_out = [question for name, text in held_out_topics.items() for question in _of_topic(name, text)]
    for question in _of_docstrings():
        side = held_out if _is_held_out(question.about, held_out_topics) else train
        side.append(question)
    held_out = list({question.question: question for question in held_out}.values())
    known = {question.text for question in held_out} | {question.question for question in held_out}
    fresh = [question for question in train if question.text not in known and question.question not in known]
    return list({question.question: question for question in fresh}.values()), held_out


def write_python_questions(folder: Path) -> QuestionFiles:
    """Write both parts into `folder` (made if need be), which a run file can then name."""
    folder.mkdir(parents=True, exist_ok=True)
    files = QuestionFiles(folder / "questions_train.jsonl", folder / "questions_held_out.jsonl")
    for path, questions in zip((files.train, files.held_out), python_questions(), strict=True):
        write_questions(path, questions)
    return files


def write_questions(path: Path, questions: list[Question]) -> None:
    """Write questions as JSON lines of OpenAI messages, into a folder that is there."""
    lines = [json.dumps(question.as_record(), ensure_ascii=False) + "\n" for question in questions]
    path.write_text("".join(lines), encoding="utf-8")


def swapped(questions: list[Question]) -> list[Question]:
    """The same questions, each with the answer of another: what a model that heeds the question finds less likely.

    In the order of their words, which is that of their kinds, each gets the answer of the one half the list further on.
    """
    ordered = sorted(questions, key=lambda question: question.question)
    half = len(ordered) // 2
    answers = {
        ours.question: other.answer for ours, other in zip(ordered, ordered[half:] + ordered[:half], strict=True)
    }
    return [replace(question, answer=answers[question.question]) for question in questions]


def _of_topic(name: str, text: str) -> Iterator[Question]:
    for found in _HEADING.finditer(text):
        title = found["title"].removesuffix(":")
        spoken = f"t{title[1:]}" if title.startswith("The ") else title
        yield from _question(name, f"Explain {spoken}.", title, found["body"])
    for found in _ENTRY.finditer(text):
        yield from _question(name, f"What is {_called(found['name'])}?", _called(found["name"]), found["body"])
    for found in _RULE.finditer(text):
        rule = f"{found['name']} ::= {' '.join(found['body'].split())}"
        if len(rule) <= 1.5 * _ANSWER:
            yield Question(name, f"What is the grammar of {found['name']}?", rule, rule)


def _of_docstrings() -> Iterator[Question]:
    for name, value in sorted(vars(builtins).items()):
        if name.startswith("_") or not isinstance(value, type | types.BuiltinFunctionType):
            continue
        holds_methods = isinstance(value, type) and not issubclass(value, BaseException)
        yield from _question(name if holds_methods else _LOOSE, f"What is {name}?", name, _docstring(value))
        if holds_methods:
            yield from _of_members(name, value)
    for name in _MODULES:
        yield from _of_members(name, importlib.import_module(name))


def _of_members(owner: str, value: object) -> Iterator[Question]:
    for member in sorted(vars(value)):
        function = getattr(value, member, None)
        known_elsewhere = inspect.isclass(function) or inspect.ismodule(function)
        if not member.startswith("_") and callable(function) and not known_elsewhere:
            name = f"{owner}.{member}"
            yield from _question(owner, f"What does {name} do?", name, _docstring(function))


def _docstring(value: object) -> str:
    """The first paragraph that is a sentence: some docstrings begin with signatures."""
    paragraphs = (inspect.getdoc(value) or "").split("\n\n")
    return next((paragraph for paragraph in paragraphs if "->" not in paragraph.split("\n")[0]), "")


def _question(about: str, question: str, subject: str, body: str) -> Iterator[Question]:
    text = _sentences(body)
    if len(text) >= _SHORTEST and not text.startswith(("New in version", "Changed in version", "-- ", "* ")):
        yield Question(about, question, f"{subject}: {text}", text)


def _sentences(body: str) -> str:
    """The beginning of a text, in whole sentences, at least one; nothing if it only leads up to what follows it."""
    text = " ".join(body.split())
    answer = ""
    for sentence in re.split(r"(?<=[.:])\s+(?=[A-Z\"*(])", text):
        if answer and len(answer) + len(sentence) > _ANSWER:
            break
        answer = f"{answer} {sentence}".strip()
    return "" if len(answer) > 1.5 * _ANSWER or answer.endswith(":") else answer


def _called(name: str) -> str:
    """A function as it is spoken of: without its parameters."""
    return name.split("(")[0] + ("()" if "(" in name else "")


def _is_held_out(about: str, held_out_topics: Container[str]) -> bool:
    """Whether docstrings about this type or module are held out; those of functions and exceptions never are."""
    share = int.from_bytes(hashlib.sha256(about.encode("utf-8")).digest()[:4], "big") / 2**32
    return about in held_out_topics or (about != _LOOSE and share < HELD_OUT_SHARE)
