"""The chat templates that are shipped, for models whose tokenizer has none."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files

from loong_core.errors import UserError


@dataclass(frozen=True)
class ChatTemplate:
    """A named template.

    Attributes:
        name: what a run file calls it.
        about: which format it writes, in one line.
        end_of_turn: the text that ends what the assistant says.
        text: the Jinja.
    """

    name: str
    about: str
    end_of_turn: str
    text: str


_SHIPPED = {
    "llama2": ("Llama 2: [INST] and <<SYS>>, no tools", "{eos_token}"),
    "llama3": ("Llama 3 and 3.1: role headers and <|eot_id|>, tools as JSON", "<|eot_id|>"),
    "chatml": ("ChatML, as Qwen writes it, tools in Hermes' form", "<|im_end|>"),
    "deepseek": ("DeepSeek-V3.1 without thinking, with its tools", "<｜end▁of▁sentence｜>"),
    "minimax": ("MiniMax-M2, tools as XML", "[e~["),
    "mistral": ("Mistral: [INST], tools and system prompt with the first question", "{eos_token}"),
    "alpaca": ("Stanford Alpaca: ### Instruction, ### Input, ### Response, no tools", "{eos_token}"),
    "plain": ("a line for each role, no special token but the end", "{eos_token}"),
}
ALIASES = {"qwen": "chatml"}
"""Other names for shipped templates."""


def template_names() -> list[str]:
    """Every name that `named_template` knows."""
    return sorted([*_SHIPPED, *ALIASES])


def named_template(name: str) -> ChatTemplate:
    """A shipped template. In `end_of_turn`, `{eos_token}` stands for the tokenizer's own.

    Raises:
        UserError: there is none of this name; names the nearest.
    """
    known = ALIASES.get(name, name)
    if known not in _SHIPPED:
        near = get_close_matches(name, template_names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"no chat template is called {name!r}; {hint}shipped are {', '.join(template_names())}")
    about, end_of_turn = _SHIPPED[known]
    text = (files("loong_llm.chat_templates") / f"{known}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(known, about, end_of_turn, text)
