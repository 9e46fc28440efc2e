"""Conversations as token ids, each marked as trained on or not.

The whole text is tokenised at once, exactly as it will be at inference; a token is trained on if its first character
lies in a trained stretch. A token that begins in the prompt and reaches into the answer is the prompt's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loong_core.config.files import user_path
from loong_core.errors import UserError
from loong_llm.chat_templates import ChatTemplate, CompiledTemplate, TemplateRefusal, named_template, template_names
from loong_llm.conversations.messages import BadSample, Conversation
from loong_llm.conversations.rendering import RenderedText, Renderer, TrainOn

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class RenderSettings:
    """How conversations become text.

    Attributes:
        template: name of a shipped chat template, path of a `.jinja` file, or None for the tokenizer's own.
        variables: values for the template's own variables (`enable_thinking`, `date_string`).
        train_on: which stretches are trained on.
    """

    template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    train_on: TrainOn = "assistant"


@dataclass(frozen=True)
class EncodedSample:
    """One text to train on.

    Attributes:
        ids: `[tokens]` int32.
        trained: `[tokens]` bool, whether the model is to learn to say the token.
    """

    ids: NDArray[np.int32]
    trained: NDArray[np.bool_]


def chat_template(tokenizer: PreTrainedTokenizerBase, template: str | None, *, tools: bool = False) -> ChatTemplate:
    """The template that a run uses.

    Args:
        tokenizer: whose own template serves if none is named.
        template: a shipped template's name, a file's path, or None.
        tools: whether it is for conversations with tools, for which some tokenizers have a template apart.

    Raises:
        UserError: nothing of that name, an unreadable file, or a tokenizer without a template.
    """
    if template is not None and (template.endswith((".jinja", ".jinja2", ".txt")) or "/" in template):
        try:
            return ChatTemplate("file", template, "", user_path(template).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"data.chat_template: {template} cannot be read ({error})") from error
    if template is not None:
        shipped = named_template(template)
        ending = shipped.end_of_turn.replace("{eos_token}", str(tokenizer.eos_token or ""))
        return ChatTemplate(shipped.name, shipped.about, ending, shipped.text)
    own: Any = tokenizer.chat_template
    if isinstance(own, dict):
        own = own.get("tool_use" if tools and "tool_use" in own else "default")
    if not own:
        raise UserError(
            f"the tokenizer {tokenizer.name_or_path or 'bytes'} has no chat template; set data.chat_template to one of "
            f"{', '.join(template_names())}, or to a .jinja file"
        )
    return ChatTemplate("tokenizer", "the tokenizer's own", "", own)


def make_renderer(tokenizer: PreTrainedTokenizerBase, settings: RenderSettings, *, tools: bool = False) -> Renderer:
    """The renderer for a tokenizer, with its special tokens as transformers gives them to templates.

    Raises:
        UserError: as `chat_template`, or the template is not valid Jinja.
    """
    template = chat_template(tokenizer, settings.template, tools=tools)
    try:
        compiled = CompiledTemplate(template.text)
    except TemplateRefusal as refusal:
        raise UserError(f"data.chat_template: {refusal}") from refusal
    unset = {f"{kind}_token": "" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")}
    variables = {**unset, **tokenizer.special_tokens_map, **settings.variables}
    added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    specials = sorted({*added, *map(str, tokenizer.all_special_tokens)}, key=lambda text: (-len(text), text))
    return Renderer(compiled, variables, template.end_of_turn or None, specials, settings.train_on)


class ConversationEncoder:
    """Renders and tokenises. It is sent to worker processes, without the transformers tokenizer, to start them fast.

    Args:
        tokenizer: a fast one, for it has to say which characters a token stands for.
        settings: how conversations become text.

    Raises:
        UserError: the tokenizer is slow, or `make_renderer`'s.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: RenderSettings) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UserError(
                f"the tokenizer {tokenizer.name_or_path} is not a fast one, so tokens cannot be traced back to "
                "characters; convert it to a tokenizer.json"
            )
        self.tokenizer = tokenizer
        self._backend = backend
        self._renderer = make_renderer(tokenizer, settings)
        self._renderer_for_tools = make_renderer(tokenizer, settings, tools=True)
        self.vocab_size = 1 + max(tokenizer.get_vocab().values())
        content = [backend.to_str(), self._renderer.template.text, self._renderer_for_tools.template.text]
        content += [json.dumps(dict(self._renderer.variables), sort_keys=True, default=str), settings.train_on]
        self.fingerprint = hashlib.sha256("\0".join(content).encode("utf-8")).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "tokenizer"}

    @property
    def renderer(self) -> Renderer:
        """What renders conversations without tools."""
        return self._renderer

    def warnings(self) -> list[str]:
        """What a user should know of template and tokenizer together."""
        ending = self._turn_ending()
        if not ending:
            return [
                "the chat template ends the assistant's turns without any special token, so the model does not learn "
                "to stop; choose another data.chat_template"
            ]
        ids = self._backend.encode(ending, add_special_tokens=False).ids
        if len(ids) > 1:
            return [
                f"the chat template's end of turn {ending!r} is {len(ids)} tokens of this tokenizer, not one; it takes "
                "longer to learn, and a template of another family may fit better"
            ]
        return []

    def end_of_turn_ids(self) -> list[int]:
        """The ids at which generation should stop: end of turn, if it is one token, and end of text."""
        ending = self._turn_ending()
        ids = self._backend.encode(ending, add_special_tokens=False).ids if ending else []
        end_of_text = [] if self.tokenizer.eos_token_id is None else [int(self.tokenizer.eos_token_id)]  # type: ignore[arg-type]
        return sorted({*(ids if len(ids) == 1 else []), *end_of_text})

    def _turn_ending(self) -> str:
        """What stands at the end of an assistant's turn, found by rendering one."""
        if self._renderer.end_of_turn:
            return self._renderer.end_of_turn
        probe = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        try:
            text = self._renderer.template.render(probe, variables=self._renderer.variables).text.rstrip()
        except TemplateRefusal:
            return ""
        return next((special for special in self._renderer.specials if text.endswith(special)), "")

    def render(self, conversation: Conversation) -> list[RenderedText]:
        """The texts of a conversation and their trained stretches.

        Raises:
            BadSample: the template refuses it.
        """
        return (self._renderer_for_tools if conversation.tools else self._renderer).render(conversation)

    def ids(self, text: str) -> list[int]:
        """Token ids of a rendered text of which nothing is trained on, such as a prompt."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode(self, texts: list[RenderedText]) -> list[EncodedSample | BadSample]:
        """Token ids of rendered texts, `BadSample` for one without a single trained token."""
        encodings = self._backend.encode_batch([text.text for text in texts], add_special_tokens=False)
        return [self._encoded(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]

    @staticmethod
    def _encoded(text: RenderedText, encoding: Encoding) -> EncodedSample | BadSample:
        ids = np.array(encoding.ids, np.int32)
        trained = np.zeros(len(ids), np.bool_)
        for start, end in text.spans:
            first, past = (_first_token(encoding, place, len(text.text), len(ids)) for place in (start, end))
            trained[first:past] = True
        if not trained[1:].any():
            return BadSample("untrained", "no token of it is trained on; leave the sample out, or widen data.train_on")
        return EncodedSample(ids, trained)


def _first_token(encoding: Encoding, character: int, characters: int, tokens: int) -> int:
    """Index of the first of a text's `tokens` that begins at `character` or later."""
    for at in range(character, characters):
        token = encoding.char_to_token(at)
        if token is not None:
            while token < tokens and encoding.token_to_chars(token)[0] < character:  # type: ignore[index]
                token += 1
            return token
    return tokens
