"""Chat templates are programs from elsewhere: they run in Jinja's sandbox, with what transformers gives them, no more.

The environment is that of transformers' `apply_chat_template` (trimmed blocks, loop controls, `tojson` that keeps
non-ASCII text, `raise_exception`, `strftime_now`, generation marks), so a template renders the same text in both.
Unlike there, a variable that is written out without having been given is an error, not an empty string.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

# Two of Unicode's noncharacters, which no text may hold: they mark in the output where a generation block was.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"


class TemplateRefusal(Exception):
    """The template cannot render this conversation; the message says why, for a person who wrote neither."""


class TemplateFailure(TemplateRefusal):
    """The template trips over the conversation's form, rather than refusing it by itself."""


class _Given(jinja2.Undefined):
    """A variable that is not there. It may be tested, but not written out or looped over."""

    def _refuse(self) -> TemplateRefusal:
        return TemplateRefusal(
            f"the chat template needs a variable {self._undefined_name!r} that it is not given; "
            f"set data.template_variables.{self._undefined_name}, or choose another template"
        )

    @property
    def _is_variable(self) -> bool:
        return self._undefined_obj is missing

    def __str__(self) -> str:
        if self._is_variable:
            raise self._refuse()
        return ""

    def __iter__(self) -> Any:
        if self._is_variable:
            raise self._refuse()
        return iter(())


class _GenerationMarks(Extension):
    """`{% generation %} ... {% endgeneration %}`: what the assistant says, in templates that tell."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own form

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> str:
        return f"{_OPEN}{caller()}{_CLOSE}"


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateRefusal(f"the chat template refuses the conversation: {message}")


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox; `message.role` of a dictionary is looked up at once, not after an attribute was not found."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox's."""
        if type(obj) is dict and attribute in obj and attribute not in _OF_DICTIONARIES:
            return obj[attribute]
        return super().getattr(obj, attribute)


_OF_DICTIONARIES = frozenset(dir(dict))


@functools.cache
def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationMarks, loopcontrols], undefined=_Given
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


@dataclass(frozen=True)
class Rendering:
    """A conversation as text.

    Attributes:
        text: what the template wrote.
        generated: stretches `[start, end)` of it inside generation marks; None if the template has none.
    """

    text: str
    generated: tuple[tuple[int, int], ...] | None = None


class CompiledTemplate:
    """A chat template, ready to render.

    Raises:
        TemplateRefusal: it is not valid Jinja.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.has_marks = re.search(r"\{%[-+]?\s*generation\b", text) is not None
        try:
            self._template = _environment().from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateRefusal(f"line {error.lineno} of the chat template is not valid Jinja: {error}") from error

    def __reduce__(self) -> tuple[type[CompiledTemplate], tuple[str]]:
        return CompiledTemplate, (self.text,)

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> Rendering:
        """Render a conversation.

        Args:
            messages: in OpenAI's form.
            tools: their JSON schemas, if any.
            add_generation_prompt: whether to end with what comes before an answer.
            variables: what else the template sees, special tokens among it.

        Raises:
            TemplateRefusal: the template raises, is not given a variable, or trips over the messages' form.
        """
        given = {"documents": None, **(variables or {})}
        try:
            text = self._template.render(
                messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **given
            )
        except TemplateRefusal:
            raise
        except jinja2.exceptions.SecurityError as error:
            raise TemplateRefusal(f"the chat template does what the sandbox forbids: {error}") from error
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise TemplateFailure(f"the chat template fails on the conversation ({error})") from error
        return _without_marks(text) if self.has_marks else Rendering(text)


def _without_marks(text: str) -> Rendering:
    parts, stretches, length = [], [], 0
    for part in re.split(f"([{_OPEN}{_CLOSE}])", text):
        if part == _OPEN:
            stretches.append([length, length])
        elif part == _CLOSE:
            stretches[-1][1] = length
        else:
            parts.append(part)
            length += len(part)
    return Rendering("".join(parts), tuple((start, end) for start, end in stretches))
