"""A model folder opened to be used rather than trained: `generate`, `eval` and the quickstart share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.errors import UserError
from loong_core.nn.key_value_cache import KeyValueCache
from loong_core.parallel.context import ParallelContext
from loong_llm.model import build_stages
from loong_llm.tokenizer import load_tokenizer
from loong_vlm.data.arrangement import arrange
from loong_vlm.data.batch import Pictures, VisionBatch
from loong_vlm.data.encoding import Placed, VisionEncoder
from loong_vlm.data.loading import load_medium
from loong_vlm.data.media import Medium
from loong_vlm.model import VisionLanguageModel
from loong_vlm.recipes.fine_tuning import open_run_model, vision_encoder
from loong_vlm.recipes.training_config import VisionModelSection, VisionTrainingConfig
from loong_vlm.source import VisionModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Altered = Callable[[Pictures], Pictures]
"""Other images in the place of a microbatch's."""


@dataclass(frozen=True)
class OpenedVisionModel:
    """A whole model on one device, with its tokenizer and its way of reading images.

    Attributes:
        source: where it is from.
        model: in evaluation mode, gradients off.
        tokenizer: the folder's, or the one asked for.
        encoder: writes conversations with images as tokens.
        device: where the weights are.
    """

    source: VisionModelSource
    model: VisionLanguageModel
    tokenizer: PreTrainedTokenizerBase
    encoder: VisionEncoder
    device: torch.device

    def answer(self, questions: Sequence[tuple[str, Sequence[Medium]]], *, max_new_tokens: int = 128) -> list[str]:
        """What the model answers to each question about its images, the best token every time.

        Args:
            questions: each a text and the images that stand before it.
            max_new_tokens: of each answer.

        Raises:
            UserError: an image cannot be read.
        """
        samples = [self.encoder.prompt(text, media) for text, media in questions]
        pictures = [self._picture(placed) for sample in samples for placed in sample.media]
        ids = torch.cat([torch.from_numpy(sample.ids).long() for sample in samples])
        text = PackedBatch.from_lengths(ids, torch.full_like(ids, IGNORED_LABEL), [len(each.ids) for each in samples])
        none = Pictures.none(self.source.parts.tower.patch_dim)
        batch = arrange(text, Pictures.join(pictures) if pictures else none, self.source.parts)
        return [self._text(own) for own in self._write(batch, none, max_new_tokens)]

    def _picture(self, placed: Placed) -> Pictures:
        measured, processor = placed.measured, self.encoder.processor
        assert processor is not None
        patches = load_medium(measured.medium, processor)
        return Pictures(patches, torch.tensor([measured.grid]), (measured.medium.kind,), (measured.seconds,))

    @torch.inference_mode()
    def _write(self, batch: VisionBatch, none: Pictures, most: int) -> list[list[int]]:
        """Ids that follow each sequence."""
        lengths = batch.text.cu_seqlens.diff().tolist()
        cache = KeyValueCache(len(lengths), max(lengths) + most)
        ends = self._ends()
        last = batch.text.position_ids[batch.text.cu_seqlens[1:].long() - 1]
        after = last.amax(-1) if last.ndim == 2 else last  # where each sequence's text stands
        logits = self.model.logits(batch.to(self.device), cache=cache)
        scores = logits[batch.text.cu_seqlens[1:].long().to(self.device) - 1]
        written: list[list[int]] = [[] for _ in lengths]
        done = [False] * len(lengths)
        for step in range(1, most + 1):
            tokens = scores.argmax(-1).cpu()
            for number, token in enumerate(tokens.tolist()):
                done[number] = done[number] or token in ends
                if not done[number]:
                    written[number].append(token)
            if all(done) or step == most:
                break
            positions = after + step
            if batch.text.position_ids.ndim == 2:
                positions = positions[:, None].expand(-1, batch.text.position_ids.shape[1])
            text = PackedBatch.from_lengths(tokens, torch.full_like(tokens, IGNORED_LABEL), [1] * len(lengths))
            next_batch = VisionBatch(replace(text, position_ids=positions), none, torch.zeros(0, dtype=torch.int64))
            scores = self.model.logits(next_batch.to(self.device), cache=cache)
        return written

    def _ends(self) -> set[int]:
        """Ids that end an answer."""
        config = self.source.hf_config
        named = config.get("eos_token_id") or (config.get("text_config") or {}).get("eos_token_id")
        own = named if isinstance(named, list) else [named]
        every = [*own, self.tokenizer.eos_token_id, *self.encoder.text.end_of_turn_ids()]
        return {int(end) for end in every if isinstance(end, int)}

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True)).strip()


def open_vision_folder(
    folder: str | Path,
    device: torch.device,
    *,
    dtype: torch.dtype = torch.float32,
    tokenizer: str | None = None,
    chat_template: str | None = None,
) -> OpenedVisionModel:
    """Open a Hugging Face folder.

    Args:
        folder: `config.json`, safetensors, preprocessor files, and the tokenizer unless one is named.
        device: where to put the weights.
        dtype: to compute in.
        tokenizer: another folder; None: the model's own.
        chat_template: a shipped template's name or a file; None: the tokenizer's own.

    Raises:
        UserError: no folder, no weights, or faulty ones; no tokenizer, or no processor.
    """
    config = VisionTrainingConfig(model=VisionModelSection(source=str(folder)), tokenizer=tokenizer)
    config = config.model_copy(update={"data": config.data.model_copy(update={"chat_template": chat_template})})
    source = open_run_model(config)
    if source.weights is None:
        raise UserError(f"model {folder} has a config but no weights; train it first, or give a folder with weights")
    text = load_tokenizer(tokenizer, source.tokenizer_dir)
    encoder = vision_encoder(config, source, text)
    (model,) = build_stages(source, ParallelContext.single(), dtype=dtype, initialise="weights")
    model.to(device).eval().requires_grad_(False)
    return OpenedVisionModel(source, model, text, encoder, device)


@dataclass(frozen=True)
class Judged:
    """How a model did on held-out samples.

    Attributes:
        loss: mean over trained tokens, in nats.
        tokens: how many.
        exact: samples whose every trained token is the model's best: what it would answer, to the letter.
        samples: how many.
        answers: of each sample the best tokens, as text.
    """

    loss: float
    tokens: int
    exact: int
    samples: int
    answers: list[str]

    @property
    def accuracy(self) -> float:
        """Share of exact answers."""
        return self.exact / max(self.samples, 1)


@torch.inference_mode()
def judge(opened: OpenedVisionModel, microbatches: Iterable[VisionBatch], altered: Altered | None = None) -> Judged:
    """Loss, and exact answers, of held-out samples.

    Args:
        opened: the model.
        microbatches: the samples.
        altered: shows other images in the place of theirs.
    """
    total, tokens, exact = 0.0, 0, 0
    answers: list[str] = []
    for whole in microbatches:
        batch = whole if altered is None else replace(whole, pictures=altered(whole.pictures))
        logits = opened.model.logits(batch.to(opened.device)).double()
        labels = batch.labels.to(opened.device)
        trained = labels != IGNORED_LABEL
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED_LABEL)
        total += losses.sum().item()
        tokens += int(trained.sum())
        best = logits.argmax(-1)
        for own in _sequences(batch, trained):
            exact += bool((best[own] == labels[own]).all())
            answers.append(opened._text(best[own].tolist()))
    return Judged(total / max(tokens, 1), tokens, exact, len(answers), answers)


def _sequences(batch: VisionBatch, trained: Tensor) -> Iterator[Tensor]:
    """Places of the trained tokens of each sequence that has any."""
    bounds = batch.text.cu_seqlens.tolist()
    for start, stop in pairwise(bounds):
        places = start + trained[start:stop].nonzero().squeeze(1)
        if len(places):
            yield places
