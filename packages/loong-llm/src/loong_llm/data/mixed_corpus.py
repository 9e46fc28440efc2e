"""Documents and conversations of one run, blended by weight: what mid-training reads.

Each part is opened as its own stage opens it; here they are one stream, in which sources take turns by the run's
weights or its schedule of weights, and one list of held-out rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from loong_core.data.blend_plan import WeightPoint, blend_of
from loong_core.data.corpus import Corpus
from loong_core.data.held_out import HeldOutRows, JoinedHeldOut
from loong_core.data.stream import SampleSource, Stream
from loong_llm.conversations.corpus import ConversationCorpus


class MixedCorpus:
    """The opened data of a mid-training run.

    Args:
        documents: its documents; None if it has none.
        conversations: its conversations, likewise.
        from_conversations: for each source of the run file, in order, whether it is one of conversations.
        weights: of the sources, None where each has the share of its size.
        schedule: weights that change with the steps.
    """

    def __init__(
        self,
        documents: Corpus | None,
        conversations: ConversationCorpus | None,
        from_conversations: Sequence[bool],
        weights: Sequence[float] | None,
        schedule: Sequence[WeightPoint] = (),
    ) -> None:
        self.documents, self.conversations = documents, conversations
        self._parts = [part for part in (documents, conversations) if part is not None]
        self._from_conversations = list(from_conversations)
        self._weights, self._schedule = weights, schedule

    def groups(self) -> list[list[SampleSource]]:
        """The samples of each source, in the order of the run file."""
        documents = iter(self.documents.groups() if self.documents is not None else [])
        conversations = iter(self.conversations.groups() if self.conversations is not None else [])
        return [list(next(conversations if each else documents)) for each in self._from_conversations]

    def stream(
        self,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        data_rank: int = 0,
        data_size: int = 1,
        vocab_size: int | None = None,
    ) -> Stream:
        """The training stream of one data rank; arguments and errors are `Stream`'s."""
        groups = self.groups()
        return Stream(
            [source for group in groups for source in group],
            blend_of(groups, self._weights, self._schedule, global_batch_size=global_batch_size),
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            data_rank=data_rank,
            data_size=data_size,
            vocab_size=vocab_size,
        )

    def held_out(self) -> HeldOutRows | None:
        """The held-out rows of both, None if there are none."""
        held = [rows for part in self._parts if (rows := part.held_out()) is not None]
        return JoinedHeldOut(held) if held else None

    def warnings(self) -> list[str]:
        """What a user should know before the run."""
        return [warning for part in self._parts for warning in part.warnings()]

    def report(self) -> list[str]:
        """What there is to train on, in lines for people."""
        return [line for part in self._parts for line in part.report()]
