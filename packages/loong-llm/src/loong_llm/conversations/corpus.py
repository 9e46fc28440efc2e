"""Everything of a run's data that is conversations, opened: prepared once into a cache, mapped by every rank.

Used as `loong_core.data.corpus` is for documents: `open_conversations(...)`, then `stream`, `held_out`, `warnings`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loong_core.config.files import user_path
from loong_core.data.blend_plan import WeightPoint, blend_of
from loong_core.data.overlap import shared_documents
from loong_core.data.packed_samples import HeldOutSamples, PackedSamples
from loong_core.data.packing import LongSamples
from loong_core.data.shared_build import from_first_rank, on_every_rank
from loong_core.data.sources import weights_of
from loong_core.data.stream import Stream
from loong_core.data.token_store import TokenStore, TokenWriter, open_store, published_folder
from loong_core.errors import Fault, UserError
from loong_llm.conversations.encoding import ConversationEncoder
from loong_llm.conversations.formats import FormatName
from loong_llm.conversations.opened_source import OpenedSource, hold_out, left_out_texts, made_from_of, opened
from loong_llm.conversations.preparation import BadSamples, PreparationCount, Recipe, prepare, source_format
from loong_llm.conversations.records import FileKind, record_blocks, record_files

OnPrepared = Callable[[str, PreparationCount], None]
"""Told, on rank 0, the source's path and how far its preparation has come."""


@dataclass(frozen=True)
class ConversationSource:
    """One entry of a run file's sources.

    Attributes:
        path: a file, a folder, a glob, or a folder that `prepare_source` wrote.
        weight: its share of the sequences, relative to the others'; None: the share of its size.
        format: messages, sharegpt or alpaca; None: detected.
        fields: our field name to the file's, where they differ.
    """

    path: str
    weight: float | None = None
    format: FormatName | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ConversationSettings:
    """What to read and how to lay it out.

    Attributes:
        train: training sources.
        cache: folder for prepared samples; all ranks must see it.
        sequence_length: places of a sequence.
        validation: held-out sources.
        validation_fraction: share of the training samples to hold out, 0 to below 1.
        bad_samples: whether a sample that cannot be trained on stops the run or is left out.
        long_samples: what becomes of a sample longer than a sequence.
        packing: whether samples share sequences.
        multiple: each sample's places are filled up to a multiple of this.
        seed: decides the order of samples.
        workers: processes that prepare.
        blend_schedule: weights of the training sources that change with the steps.
    """

    train: tuple[ConversationSource, ...]
    cache: Path
    sequence_length: int
    validation: tuple[ConversationSource, ...] = ()
    validation_fraction: float = 0.0
    bad_samples: BadSamples = "stop"
    long_samples: LongSamples = "truncate"
    packing: bool = True
    multiple: int = 1
    seed: int = 0
    workers: int = 1
    blend_schedule: tuple[WeightPoint, ...] = ()


OpenConversations = OpenedSource[ConversationSource, TokenStore]
"""One source's samples, and what became of its records."""


class ConversationCorpus:
    """The opened conversations of a run."""

    def __init__(
        self,
        settings: ConversationSettings,
        encoder: ConversationEncoder,
        train: list[OpenConversations],
        held_out: list[OpenConversations],
    ) -> None:
        self.settings = settings
        self.encoder = encoder
        self.train = train
        self._held_out = held_out
        self._sequences: list[PackedSamples] | None = None

    def warnings(self) -> list[str]:
        """What a user should know before the run: samples left out, template trouble, samples also held out."""
        found = [*self.encoder.warnings(), *left_out_texts(self.train + self._held_out)]
        shared = shared_documents((part.store for part in self.train), (part.store for part in self._held_out))
        if shared:
            total = sum(len(part.store) for part in self._held_out)
            found.append(f"{shared:,} of {total:,} held-out samples are in the training data too, word for word")
        return found

    def sequences(self) -> list[PackedSamples]:
        """The packed training samples, one a source; packed when first asked for."""
        if self._sequences is None:
            settings = self.settings
            self._sequences = [
                PackedSamples(
                    part.store,
                    settings.sequence_length,
                    long_samples=settings.long_samples,
                    packing=settings.packing,
                    multiple=settings.multiple,
                    seed=settings.seed,
                    source=number,
                )
                for number, part in enumerate(self.train)
            ]
        return self._sequences

    def groups(self) -> list[list[PackedSamples]]:
        """`sequences` as `blend_of` takes them: each source has one store."""
        return [[own] for own in self.sequences()]

    def report(self) -> list[str]:
        """What there is to train on, in lines for people: each source's samples and tokens, and how they are packed."""
        samples = [
            f"{part.source.path}: {part.count.samples:,} samples of {part.count.records:,} records, "
            f"{part.count.trained_tokens:,} of {part.count.tokens:,} tokens trained on"
            for part in self.train
        ]
        return [*samples, *self.packing_report()]

    def packing_report(self) -> list[str]:
        """One line a source: how well its samples are packed, and what became of long ones."""
        return [f"{part.source.path}: {own.count}" for part, own in zip(self.train, self.sequences(), strict=True)]

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
        shares = blend_of(
            self.groups(),
            weights_of([part.source for part in self.train]),
            self.settings.blend_schedule,
            global_batch_size=global_batch_size,
        )
        return Stream(
            self.sequences(),
            shares,
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            data_rank=data_rank,
            data_size=data_size,
            vocab_size=vocab_size,
        )

    def held_out(self) -> HeldOutSamples | None:
        """The held-out sequences, None if the run has none."""
        if not self._held_out:
            return None
        stores = [part.store for part in self._held_out]
        return HeldOutSamples(stores, self.settings.sequence_length, multiple=self.settings.multiple)


def open_conversations(
    settings: ConversationSettings, encoder: ConversationEncoder, on_prepared: OnPrepared | None = None
) -> ConversationCorpus:
    """Open a run's conversations. Collective over the default process group, if there is one.

    Args:
        settings: what to read.
        encoder: tokenizer and template.
        on_prepared: called on rank 0 while it prepares.

    Raises:
        UserError: what is wrong with the data, on every rank.
    """
    weights_of(settings.train)
    train = [_open(source, settings, encoder, on_prepared) for source in settings.train]
    held_out = [_open(source, settings, encoder, on_prepared) for source in settings.validation]
    if settings.validation_fraction:
        train, split = hold_out(train, settings.validation_fraction)
        held_out += split
    return ConversationCorpus(settings, encoder, train, held_out)


def conversation_faults(sources: tuple[ConversationSource, ...], where: str) -> list[Fault]:
    """What can be known to be wrong with sources from their names and first records; nothing is written.

    Args:
        sources: the sources.
        where: the run file's key, such as `data.train`.
    """
    faults = []
    try:
        weights_of(sources)
    except UserError as error:
        faults.append(Fault(where, str(error)))
    for number, source in enumerate(sources):
        key = where if len(sources) == 1 else f"{where}[{number}]"
        try:
            if not (Path(source.path) / "store.json").is_file():
                source_format(record_files(source.path), source.format, source.fields)
        except UserError as error:
            faults.append(Fault(key, str(error)))
    return faults


def prepare_source(
    source: ConversationSource,
    folder: Path,
    encoder: ConversationEncoder,
    *,
    bad_samples: BadSamples = "stop",
    workers: int = 1,
    on_prepared: OnPrepared | None = None,
) -> None:
    """Write a source's samples to a folder that can then stand in its place, as `loong-llm preprocess` does.

    Raises:
        UserError: what is wrong with the data; the folder then does not exist.
    """
    files = record_files(source.path)
    form = source_format(files, source.format, source.fields)
    prepare_files(source, files, folder, encoder, form, bad_samples, workers, on_prepared)


def _open(
    source: ConversationSource,
    settings: ConversationSettings,
    encoder: ConversationEncoder,
    on_prepared: OnPrepared | None,
) -> OpenConversations:
    ready = user_path(source.path)
    if (ready / "store.json").is_file():
        folder, digest = ready, None
    else:
        files = on_every_rank(lambda: record_files(source.path))
        folder, digest = from_first_rank(lambda: _build(source, files, settings, encoder, on_prepared))
    return on_every_rank(lambda: _open_prepared(source, folder, digest, encoder))


def _open_prepared(
    source: ConversationSource, folder: Path, digest: str | None, encoder: ConversationEncoder
) -> OpenConversations:
    store = open_store(folder, source.path, verify=digest is None, digest=digest)
    made_from = made_from_of(folder)
    if made_from.get("kind") != "conversations":
        raise UserError(f"{folder} holds documents' tokens, not conversations; name it under documents instead")
    if made_from["encoder"] != encoder.fingerprint:
        raise UserError(
            f"{folder} was prepared with another tokenizer, chat template or data.train_on; prepare it again, or name "
            "the conversations themselves"
        )
    return opened(source, store, made_from)


def _build(
    source: ConversationSource,
    files: list[tuple[Path, FileKind]],
    settings: ConversationSettings,
    encoder: ConversationEncoder,
    on_prepared: OnPrepared | None,
) -> tuple[Path, str]:
    folder = settings.cache / _cache_key(source, files, settings, encoder)
    if folder.is_dir():
        return folder, open_store(folder, source.path, verify=True).digest
    form = source_format(files, source.format, source.fields)
    prepare_files(source, files, folder, encoder, form, settings.bad_samples, settings.workers, on_prepared)
    return folder, open_store(folder, source.path, verify=False).digest


def prepare_files(
    source: ConversationSource,
    files: list[tuple[Path, FileKind]],
    folder: Path,
    encoder: ConversationEncoder,
    form: FormatName,
    bad_samples: BadSamples,
    workers: int,
    on_prepared: OnPrepared | None = None,
) -> None:
    """Write the samples of some of a source's files, whose records have this form, to a folder.

    Raises:
        UserError: what is wrong with the data; the folder then does not exist.
    """
    recipe = Recipe(encoder, form, source.fields, bad_samples)
    blocks = (block for path, kind in files for block in record_blocks(path, kind))
    count = PreparationCount()
    try:
        with published_folder(folder) as temporary:
            writer = TokenWriter(temporary, 2 * encoder.vocab_size)
            for _, done in prepare(blocks, recipe, workers=workers):
                writer.add(done.marked, done.lengths, np.ones(len(done.lengths), np.bool_), 0)
                count.add(done.count)
                if on_prepared is not None:
                    on_prepared(source.path, count)
            writer.finish(
                {
                    "kind": "conversations",
                    "encoder": encoder.fingerprint,
                    "format": recipe.format,
                    "files": [str(path) for path, _ in files],
                    "count": count.as_json(),
                }
            )
    except OSError as error:
        raise UserError(f"{folder}: prepared samples cannot be written ({error}); set data.cache elsewhere") from error


def _cache_key(
    source: ConversationSource,
    files: list[tuple[Path, FileKind]],
    settings: ConversationSettings,
    encoder: ConversationEncoder,
) -> str:
    parts: list[object] = [1, encoder.fingerprint, source.format, dict(source.fields), settings.bad_samples]
    for path, kind in files:
        with path.open("rb") as stream:
            parts.append([kind, path.suffix, hashlib.file_digest(stream, "sha256").hexdigest()])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
