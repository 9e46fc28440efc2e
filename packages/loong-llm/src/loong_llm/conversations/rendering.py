"""Conversations as text, and which stretches of it the assistant says.

Templates with generation marks tell. For others, the text up to a turn is rendered with and without the turn: what the
template writes for `messages[:i]` and the opening of an answer is prompt, what it adds for message `i` is the answer.
Where a template writes an earlier turn otherwise once more messages follow (it drops old reasoning, or moves the
tools), that turn is trained in a rendering of its own, which ends with it, as the model will meet it when it answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

from loong_llm.chat_templates.sandbox import CompiledTemplate, TemplateFailure, TemplateRefusal
from loong_llm.conversations.messages import BadSample, Conversation, Message

TrainOn = Literal["assistant", "last_turn", "everything"]
"""What is trained on: all that the assistant says; what it says after the user's last message; prompts too."""


@dataclass(frozen=True)
class RenderedText:
    """A conversation, or its beginning, as text.

    Attributes:
        text: what the model reads.
        spans: stretches `[start, end)` of characters that are trained on, in order, apart from each other.
    """

    text: str
    spans: list[tuple[int, int]]


@dataclass
class Renderer:
    """Renders conversations by one template.

    Attributes:
        template: the chat template.
        variables: what it sees beside the messages: special tokens, and what the run file gives.
        end_of_turn: the text that ends an assistant's turn; None: any of `specials`.
        specials: the tokenizer's special tokens.
        train_on: which stretches count.
    """

    template: CompiledTemplate
    variables: Mapping[str, Any] = field(default_factory=dict)
    end_of_turn: str | None = None
    specials: Sequence[str] = ()
    train_on: TrainOn = "assistant"

    def render(self, conversation: Conversation) -> list[RenderedText]:
        """The texts to train on: one, or several where the template treats earlier turns unlike the last.

        Raises:
            BadSample: the template refuses the conversation.
        """
        try:
            return self._render(conversation)
        except TemplateFailure as failure:
            textual = _with_textual_arguments(conversation)
            if textual is None:
                raise BadSample("template", str(failure)) from failure
            try:
                # Some templates want arguments as JSON text, which most would quote once more.
                return self._render(textual)
            except TemplateRefusal:
                raise BadSample("template", str(failure)) from failure
        except TemplateRefusal as refusal:
            raise BadSample("template", str(refusal)) from refusal

    def prompt(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> str:
        """The text after which the assistant is to answer.

        Raises:
            TemplateRefusal: the template refuses it.
        """
        return self.template.render(messages, tools, add_generation_prompt=True, variables=self.variables).text

    def _text(self, conversation: Conversation, stop: int) -> str:
        messages = conversation.messages[:stop]
        return self.template.render(messages, conversation.tools, variables=self.variables).text

    def _render(self, conversation: Conversation) -> list[RenderedText]:
        whole = self.template.render(conversation.messages, conversation.tools, variables=self.variables)
        if self.train_on == "everything":
            return [RenderedText(whole.text, [(0, len(whole.text))])]
        turns = conversation.assistant_turns
        if self.train_on == "last_turn":
            turns = [turn for turn in turns if turn > _last_question(conversation)]
        if whole.generated is not None:
            return [RenderedText(whole.text, self._marked(conversation, turns, whole.generated))]
        return self._by_prefixes(conversation, turns, whole.text)

    def _marked(
        self, conversation: Conversation, turns: list[int], marks: tuple[tuple[int, int], ...]
    ) -> list[tuple[int, int]]:
        answers = [index for index, message in enumerate(conversation.messages) if message["role"] == "assistant"]
        if len(answers) != len(marks):
            if turns == answers:
                return [mark for mark in marks if mark[0] < mark[1]]
            raise TemplateRefusal(
                f"the chat template marks {len(marks)} stretches as generated for {len(answers)} assistant messages, "
                "so single messages cannot be chosen"
            )
        return [mark for index, mark in zip(answers, marks, strict=True) if index in turns and mark[0] < mark[1]]

    def _by_prefixes(self, conversation: Conversation, turns: list[int], whole: str) -> list[RenderedText]:
        found: list[RenderedText] = []
        text, stop = whole, len(conversation.messages)
        while turns:
            spans: list[tuple[int, int]] = []
            elsewhere: list[int] = []
            for turn in turns:
                span = self._span(conversation, turn, text, stop)
                if span is None:
                    elsewhere.append(turn)
                else:
                    spans.append(span)
            if spans:
                found.append(RenderedText(text, spans))
            elif stop == turns[-1] + 1:
                raise TemplateRefusal("the chat template writes nothing for an assistant message")
            turns = elsewhere
            if turns:
                stop = turns[-1] + 1
                text = self._text(conversation, stop)
        return found[::-1]

    def _span(self, conversation: Conversation, turn: int, text: str, stop: int) -> tuple[int, int] | None:
        """Where `text`, the rendering of `messages[:stop]`, says message `turn`; None if it says it otherwise."""
        with_turn = text if stop == turn + 1 else self._text(conversation, turn + 1)
        if not text.startswith(with_turn):
            return None
        prompt = self.prompt(conversation.messages[:turn], conversation.tools)
        if with_turn.startswith(prompt):
            start = len(prompt)
        else:
            start = self._after_header(prompt, with_turn)
            if start < len(self._text(conversation, turn)):
                raise TemplateRefusal(f"the chat template rewrites what came before message {turn} when it is added")
        end = self._end(with_turn, start)
        return (start, end) if start < end else None

    def _after_header(self, prompt: str, with_turn: str) -> int:
        """Where the answer begins if the template opens answers otherwise than this one begins (with `<think>`, say).

        They part inside the turn; a special token that they part in the middle of belongs to the answer.
        """
        shorter = min(len(prompt), len(with_turn))
        start = next((place for place in range(shorter) if prompt[place] != with_turn[place]), shorter)
        for special in self.specials:
            for offset in range(1, len(special)):
                at = start - offset
                if at >= 0 and (with_turn.startswith(special, at) or prompt.startswith(special, at)):
                    return at
        return start

    def _end(self, with_turn: str, start: int) -> int:
        """Where the turn ends: with its end-of-turn token, leaving out the white space that a template puts behind."""
        stripped = with_turn.rstrip()
        endings = self.specials if self.end_of_turn is None else [self.end_of_turn]
        if len(stripped) > start and any(ending and stripped.endswith(ending) for ending in endings):
            return len(stripped)
        return len(with_turn)


def _last_question(conversation: Conversation) -> int:
    return max(index for index, message in enumerate(conversation.messages) if message["role"] == "user")


def _with_textual_arguments(conversation: Conversation) -> Conversation | None:
    """The conversation with tool arguments as JSON text, None if it has no tool call."""
    if not any("tool_calls" in message for message in conversation.messages):
        return None
    messages = deepcopy(conversation.messages)
    for message in messages:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return Conversation(messages, conversation.tools, conversation.trained)
