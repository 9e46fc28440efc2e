"""The training data as one endless line of samples, of which every step takes the next `global_batch_size`.

The line is the same whatever the number of data ranks; a rank takes its share of each step. The only state is how many
samples were consumed, so a run resumes exactly, on another number of ranks too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Protocol

from loong_core.data.batch import PackedBatch
from loong_core.data.blend import Blend
from loong_core.data.blend_schedule import ScheduledBlend
from loong_core.data.sequences import Sample, pack
from loong_core.data.token_store import TokenStore
from loong_core.errors import UserError


class SampleSource(Protocol):
    """An endless line of samples: epoch after epoch of a store's, each in an order of its own."""

    store: TokenStore
    sequence_length: int
    attend_across_documents: bool
    per_epoch: int
    """Samples of one epoch."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What, beside store and sequence length, decides the samples; json-able."""
        ...

    def sample(self, draw: int) -> Sample:
        """The `draw`-th sample since the beginning of epoch 0."""
        ...


class Stream:
    """This data rank's microbatches, step by step.

    Args:
        sources: where samples come from.
        shares: proportions of the sources, or a schedule of them; None: each the share of its size, so that an epoch is
            every sample once.
        global_batch_size: samples a step, over all data ranks.
        micro_batch_size: samples a microbatch.
        data_rank: which share of each step.
        data_size: number of shares.
        vocab_size: rows of the model's embedding; a larger id in the data is an error. None: not checked.

    Raises:
        UserError: sizes that do not divide, or fewer samples than a step needs.
    """

    def __init__(
        self,
        sources: Sequence[SampleSource],
        shares: Sequence[float] | ScheduledBlend | None = None,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        data_rank: int = 0,
        data_size: int = 1,
        vocab_size: int | None = None,
    ) -> None:
        self.sources = list(sources)
        self.samples_per_epoch = sum(source.per_epoch for source in self.sources)
        self.global_batch_size = global_batch_size
        self.micro_batch_size = micro_batch_size
        self.consumed_samples = 0
        scheduled = isinstance(shares, ScheduledBlend)
        self._blend = shares if scheduled else Blend(shares or [source.per_epoch for source in self.sources])
        self._rank, self._size = data_rank, data_size
        self._vocab_size = vocab_size
        if global_batch_size % (micro_batch_size * data_size):
            raise UserError(
                f"train.global_batch_size {global_batch_size} is not a multiple of train.micro_batch_size "
                f"{micro_batch_size} x {data_size} data ranks = {micro_batch_size * data_size}"
            )
        if self.samples_per_epoch < global_batch_size:
            names = ", ".join(source.store.name for source in self.sources)
            raise UserError(
                f"the training data ({names}) makes {self.samples_per_epoch} samples of "
                f"{self.sources[0].sequence_length} tokens, fewer than train.global_batch_size {global_batch_size}; "
                "give more text, or lower data.sequence_length or train.global_batch_size"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Whole steps in one epoch. Steps may straddle epochs: see `steps_for`."""
        return self.samples_per_epoch // self.global_batch_size

    def steps_for(self, epochs: float) -> int:
        """Steps that use `epochs` epochs, at least one.

        Epochs follow each other without a gap, so only the last drops a tail of less than a step. In a blend with
        weights an epoch is as many samples as the sources hold together, in the proportions asked for: small sources
        with a large share repeat, each in a new order every time.
        """
        return max(1, int(epochs * self.samples_per_epoch) // self.global_batch_size)

    @property
    def epoch(self) -> float:
        """How many epochs were consumed."""
        return self.consumed_samples / self.samples_per_epoch

    def next_step(self) -> list[PackedBatch]:
        """This rank's microbatches of the next step.

        Raises:
            UserError: the data hold an id that the model's embedding does not have.
        """
        first = self.consumed_samples
        stride = self.micro_batch_size * self._size
        starts = range(first + self._rank * self.micro_batch_size, first + self.global_batch_size, stride)
        step = [self._microbatch(start) for start in starts]
        self.consumed_samples = first + self.global_batch_size
        return step

    def _microbatch(self, start: int) -> PackedBatch:
        samples = []
        for number in range(start, start + self.micro_batch_size):
            source, draw = self._blend.source_of(number)
            sample = self.sources[source].sample(draw)
            self.check_ids(sample, self.sources[source].store.name)
            samples.append(sample)
        return pack(samples)

    def check_ids(self, sample: Sample, name: str) -> None:
        """Refuse ids that the model's embedding does not have.

        Raises:
            UserError: see above; `name` tells where they are from.
        """
        if self._vocab_size is not None and int(sample.tokens.max()) >= self._vocab_size:
            raise UserError(
                f"{name} holds token id {int(sample.tokens.max())}, but the model's "
                f"vocab_size is {self._vocab_size}; the data were made with another tokenizer"
            )

    def figures(self, row: dict[str, Any]) -> dict[str, Any]:
        """More figures of a step whose others are `row`, the same on every rank; called once a step, on all ranks."""
        return {}

    @property
    def identity(self) -> str:
        """Digest of everything that decides the samples' order: data, proportions, seed, length, boundaries."""
        parts: list[Any] = [self._blend.shares]
        for source in self.sources:
            parts.append([source.store.digest, source.sequence_length, source.attend_across_documents, *source.key])
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def state_dict(self) -> dict[str, int | str]:
        """What a checkpoint keeps: the position, and what it is a position in."""
        return {"consumed_samples": self.consumed_samples, "identity": self.identity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a checkpoint's position.

        Raises:
            UserError: the checkpoint was made with other data.
        """
        if state["identity"] != self.identity:
            raise UserError(
                f"the training data are not those of the checkpoint ({state['consumed_samples']} samples consumed): "
                "files, tokenizer, weights, data.sequence_length, data.attend_across_documents or seed have changed; "
                "restore them, or start in a new output folder from the saved weights"
            )
        self.consumed_samples = int(state["consumed_samples"])
