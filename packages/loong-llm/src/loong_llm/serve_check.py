"""Whether a model folder serves: transformers opens it, and computes from it what we compute.

What is compared are logits in float32 over a run of tokens, the tokens that greedy decoding chooses, and the chat
template's text for a conversation, all from the files alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from loong_core.data.batch import PackedBatch
from loong_core.errors import UserError
from loong_llm.generate import chat_prompts, generate
from loong_llm.inference import OpenedModel, open_for_inference
from loong_llm.reference_model import ReferenceDecoder

TOLERANCE = 1e-4
_LENGTH, _NEW = 64, 8


@dataclass(frozen=True)
class Served:
    """What was found.

    Attributes:
        difference: the largest between two logits.
        largest: the largest logit.
        tokens: over how many tokens.
        written: tokens that both chose.
        chat: whether there is a chat template, on which both agree.
    """

    difference: float
    largest: float
    tokens: int
    written: int
    chat: bool


@torch.no_grad()
def serve_check(folder: Path, device: torch.device, *, tolerance: float = TOLERANCE) -> Served:
    """Compare a folder as we compute it with transformers.

    Args:
        folder: a Hugging Face folder.
        device: where both compute.
        tolerance: the largest difference of two logits, in parts of the largest logit (1 at least).

    Raises:
        UserError: one of the two does not open the folder, or they differ; says in what and by how much.
    """
    ours = open_for_inference(folder, device)
    theirs = ReferenceDecoder(str(folder), device, torch.float32).model
    length = min(_LENGTH, ours.max_length or _LENGTH)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(ours.source.config.vocab_size, (length,), generator=generator).to(device)
    logits = ours.decoder.logits(PackedBatch.from_lengths(tokens, tokens, [length]))
    their_logits = theirs(input_ids=tokens[None]).logits[0]
    if logits.shape != their_logits.shape:
        raise UserError(
            f"{folder}: transformers gives logits of {list(their_logits.shape)}, we of {list(logits.shape)}; its "
            "config and weights disagree"
        )
    difference, largest = float((logits - their_logits).abs().max()), float(their_logits.abs().max())
    if not difference <= tolerance * max(largest, 1.0):
        raise UserError(
            f"{folder}: logits differ from transformers' by up to {difference:.3g}, the largest is {largest:.3g}; the "
            "folder is not what was trained, or another version of transformers reads its config otherwise"
        )
    written = _greedy_agrees(folder, ours, theirs, device)
    return Served(difference, largest, length, written, _chat_agrees(folder, ours))


def _greedy_agrees(folder: Path, ours: OpenedModel, theirs: torch.nn.Module, device: torch.device) -> int:
    """How many tokens both write after a prompt."""
    prompt = "The"
    ids = ours.tokenizer(prompt, return_tensors="pt").input_ids.to(device)
    if ids[0, -1] == ours.tokenizer.eos_token_id:
        ids = ids[:, :-1]
    if ours.max_length is not None and ids.shape[1] + _NEW > ours.max_length:
        return 0
    (own,) = generate(ours, [prompt], max_new_tokens=_NEW)
    chosen = theirs.generate(ids, max_new_tokens=_NEW, do_sample=False)[0, ids.shape[1] :].tolist()  # type: ignore[operator]
    if chosen[: len(own.tokens)] != own.tokens:
        raise UserError(f"{folder}: after {prompt!r} transformers writes {chosen}, we {own.tokens}; see its config")
    return len(own.tokens)


def _chat_agrees(folder: Path, ours: OpenedModel) -> bool:
    """Whether there is a chat template; transformers' text of a conversation is then ours."""
    if not ours.tokenizer.chat_template:
        return False
    said = "What is a byte?"
    (own,) = chat_prompts(ours, [said])
    theirs = ours.tokenizer.apply_chat_template(
        [{"role": "user", "content": said}], tokenize=False, add_generation_prompt=True
    )
    if own != theirs:
        raise UserError(f"{folder}: transformers writes a conversation as {theirs!r}, we as {own!r}; see chat_template")
    return True
