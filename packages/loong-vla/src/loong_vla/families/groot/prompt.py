"""What GR00T is told in words: its pictures, then the task, as one turn of a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loong_core.errors import Fault, UserError
from loong_vla.data.prompts import vocabulary_faults
from loong_vlm.data.placeholders import PlaceholderLayout, placeholder_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from loong_vla.families.groot.policy_config import GrootConfig

NO_TASK = "Perform the task."
"""What is asked for where a recording does not say."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)
"""Of a Qwen3-VL's conversation; what `turn` writes where a tokenizer has no template of its own."""


def plain_task(task: str) -> str:
    """A task in small letters, without punctuation, as the published models were trained."""
    kept = (letter for letter in (task or NO_TASK).lower() if letter.isalnum() or letter.isspace() or letter == "_")
    return "".join(kept)


def turn(tokenizer: PreTrainedTokenizerBase, layout: PlaceholderLayout, pictures: int, task: str) -> str:
    """One turn of the user, by the tokenizer's chat template; by ChatML where it has none.

    Args:
        tokenizer: the policy's.
        layout: how pictures are written.
        pictures: how many there are.
        task: as it is told.
    """
    if tokenizer.chat_template is None:
        return f"<|im_start|>user\n{layout.image() * pictures}{task}<|im_end|>\n"
    content = [{"type": "image"}] * pictures + [{"type": "text", "text": task}]
    conversation = [{"role": "user", "content": content}]
    return str(tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=False))


def groot_tokenizer_faults(tokenizer: PreTrainedTokenizerBase, config: GrootConfig) -> list[Fault]:
    """What keeps a tokenizer and a GR00T policy apart: too many tokens, or no placeholder of pictures."""
    faults = vocabulary_faults(tokenizer, config.vocab_size)
    layout, wanted = config.parts.meeting.layout, config.parts.meeting.image_token
    try:
        found = placeholder_ids(layout, tokenizer)[layout.tokens[0]]
    except UserError as error:
        return [*faults, Fault("tokenizer", str(error))]
    if found != wanted:
        what = f"{layout.tokens[0]} is token {found}, the policy's image_token is {wanted}"
        faults.append(Fault("tokenizer", what, "take the tokenizer that the policy was trained with"))
    return faults
