"""Everything a run's `data` section names, opened: text is tokenised once into a cache, prepared pairs are mapped.

Rank 0 builds the cache; all ranks map it and verify that they see the same. A cache's name is the digest of the files'
content and of the tokenizer, so changed data or another tokenizer never meet old ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loong_core.data.blend_plan import WeightPoint, blend_of
from loong_core.data.documents import Block, blocks
from loong_core.data.held_out import HeldOut
from loong_core.data.indexed import open_indexed
from loong_core.data.overlap import shared_documents
from loong_core.data.sequences import Sequences
from loong_core.data.shared_build import from_first_rank, on_every_rank
from loong_core.data.shuffle import held_out_split
from loong_core.data.sources import SourceFile, SourceSpec, resolve, weights_of
from loong_core.data.stream import Stream
from loong_core.data.token_store import TokenStore, TokenWriter, open_store, published_folder
from loong_core.data.tokenize import TextEncoder, tokenize
from loong_core.errors import UserError
from loong_core.wording import counted

"""Decides which documents are held out; apart from the run's seed, so that two seeds are judged by the same text."""

_SEARCHED_TOKENS = 1 << 30
"""Up to how many training tokens the search for held-out documents among them takes seconds."""


@dataclass(frozen=True)
class CorpusSettings:
    """What to read.

    Attributes:
        train: training sources.
        validation: held-out sources; empty if there are none or `validation_fraction` makes them.
        validation_fraction: share of the training documents to hold out, 0 to below 1.
        text_key: field or column that holds a document's text.
        sequence_length: tokens of a sample.
        attend_across_documents: whether attention and labels ignore document boundaries.
        seed: decides the order of samples.
        cache: folder for token ids; all ranks must see it.
        workers: processes that tokenise.
        blend_schedule: weights of the training sources that change with the steps.
    """

    train: tuple[SourceSpec, ...]
    cache: Path
    sequence_length: int
    validation: tuple[SourceSpec, ...] = ()
    validation_fraction: float = 0.0
    text_key: str = "text"
    attend_across_documents: bool = False
    seed: int = 0
    workers: int = 1
    blend_schedule: tuple[WeightPoint, ...] = ()


@dataclass(frozen=True)
class Progress:
    """How far tokenising has come: bytes of text files, and what they made. Shown by whoever asked."""

    source: str
    done_bytes: int
    total_bytes: int
    documents: int
    empty_documents: int
    tokens: int


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class OpenSource:
    """One training source: its weight, and its stores (several if it names several pairs)."""

    spec: SourceSpec
    stores: list[TokenStore]


class Corpus:
    """The opened data of a run."""

    def __init__(self, settings: CorpusSettings, train: list[OpenSource], held_out: list[TokenStore]) -> None:
        self.settings = settings
        self.train = train
        self._held_out = held_out

    def warnings(self) -> list[str]:
        """What a user should know before the run: documents left out, text both trained on and held out."""
        found = []
        for store in [store for source in self.train for store in source.stores] + self._held_out:
            if store.empty_documents:
                found.append(f"{store.name}: {counted(store.empty_documents, 'document')} without text left out")
        trained = [store for source in self.train for store in source.stores]
        if self._held_out and sum(store.total_tokens for store in trained) <= _SEARCHED_TOKENS:
            shared = shared_documents(trained, self._held_out)
            if shared:
                total = sum(len(store) for store in self._held_out)
                found.append(
                    f"{shared:,} of {counted(total, 'held-out document')} also in the training data, word for word"
                )
        return found

    def report(self) -> list[str]:
        """What there is to train on, in lines for people."""
        tokens = sum(store.total_tokens for source in self.train for store in source.stores)
        return [f"{tokens:,} tokens to train on"]

    def groups(self) -> list[list[Sequences]]:
        """The samples of each training source, one a store."""
        groups: list[list[Sequences]] = []
        for source in self.train:
            before = sum(map(len, groups))
            groups.append(
                [
                    Sequences(
                        store,
                        self.settings.sequence_length,
                        attend_across_documents=self.settings.attend_across_documents,
                        seed=self.settings.seed,
                        source=before + place,
                    )
                    for place, store in enumerate(source.stores)
                ]
            )
        return groups

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
        shares = blend_of(
            groups,
            weights_of([source.spec for source in self.train]),
            self.settings.blend_schedule,
            global_batch_size=global_batch_size,
        )
        return Stream(
            [store for group in groups for store in group],
            shares,
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            data_rank=data_rank,
            data_size=data_size,
            vocab_size=vocab_size,
        )

    def held_out(self) -> HeldOut | None:
        """The held-out rows, None if the run has none."""
        if not self._held_out:
            return None
        return HeldOut(
            self._held_out,
            self.settings.sequence_length,
            attend_across_documents=self.settings.attend_across_documents,
        )


def open_corpus(settings: CorpusSettings, encoder: TextEncoder | None, on_progress: OnProgress | None = None) -> Corpus:
    """Open a run's data. Collective over the default process group, if there is one.

    Args:
        settings: what to read.
        encoder: the tokenizer; may be None if all sources are `.bin`/`.idx` pairs.
        on_progress: called on rank 0 while it tokenises.

    Raises:
        UserError: what is wrong with the data, on every rank.
    """
    weights_of(settings.train)
    train = [OpenSource(spec, _open(spec, settings, encoder, on_progress)) for spec in settings.train]
    held_out = [store for spec in settings.validation for store in _open(spec, settings, encoder, on_progress)]
    if settings.validation_fraction:
        train, split = _hold_out(train, settings.validation_fraction)
        held_out += split
    return Corpus(settings, train, held_out)


def _open(
    spec: SourceSpec, settings: CorpusSettings, encoder: TextEncoder | None, on_progress: OnProgress | None
) -> list[TokenStore]:
    files = on_every_rank(lambda: resolve(spec.path))
    stores = [on_every_rank(lambda path=file.path: open_indexed(path)) for file in files if file.format == "indexed"]
    texts = [file for file in files if file.format != "indexed"]
    if texts:
        if encoder is None:
            raise UserError(f"{spec.path} is text, and there is no tokenizer to read it with; set tokenizer")
        folder, digest = from_first_rank(lambda: _build(spec, texts, settings, encoder, on_progress))
        stores.append(on_every_rank(lambda: open_store(folder, spec.path, verify=False, digest=digest)))
    empty = [store.name for store in stores if len(store) == 0]
    if empty:
        raise UserError(f"{', '.join(empty)}: not one document with text in it; give the run some text")
    return stores


def _build(
    spec: SourceSpec,
    files: list[SourceFile],
    settings: CorpusSettings,
    encoder: TextEncoder,
    on_progress: OnProgress | None,
) -> tuple[Path, str]:
    folder = settings.cache / _cache_key(files, settings.text_key, encoder)
    if folder.is_dir():
        return folder, open_store(folder, spec.path, verify=True).digest
    try:
        with published_folder(folder) as temporary:
            writer = TokenWriter(temporary, encoder.vocab_size)
            tracker = ProgressTracker(spec.path, files, on_progress)
            for block, chunk in tokenize(blocks(files), settings.text_key, encoder, workers=settings.workers):
                writer.add(chunk.ids, chunk.lengths, chunk.ends, chunk.text_bytes)
                tracker.advance(block, int(chunk.ends.sum()), chunk.empty, len(chunk.ids))
            writer.finish({"tokenizer": encoder.fingerprint, "files": [str(file.path) for file in files]})
    except OSError as error:
        raise UserError(f"{settings.cache}: token ids cannot be written ({error}); set data.cache elsewhere") from error
    return folder, open_store(folder, spec.path, verify=False).digest


class ProgressTracker:
    """Adds up how far tokenising has come and tells `on_progress`."""

    def __init__(self, source: str, files: Sequence[SourceFile], on_progress: OnProgress | None) -> None:
        self._source, self._on_progress = source, on_progress
        self._before: dict[Path, int] = {}
        self._sizes = {file.path: file.size for file in files}
        self._total = 0
        for file in files:
            self._before[file.path] = self._total
            self._total += self._sizes[file.path]
        self.documents = self.empty = self.tokens = 0

    def advance(self, block: Block, documents: int, empty: int, tokens: int) -> None:
        """Count one chunk of `block`."""
        self.documents += documents - empty
        self.empty += empty
        self.tokens += tokens
        if self._on_progress is not None:
            bytewise = block.format in ("text", "jsonl") and block.stop is not None
            within = block.stop if bytewise and block.stop is not None else self._sizes[block.path]
            done = self._before[block.path] + within
            self._on_progress(Progress(self._source, done, self._total, self.documents, self.empty, self.tokens))


def _cache_key(files: Sequence[SourceFile], text_key: str, encoder: TextEncoder) -> str:
    parts: list[object] = [1, encoder.fingerprint, encoder.prefix, encoder.suffix, text_key]
    for file in files:
        with file.path.open("rb") as stream:
            parts.append([file.format, file.path.suffix, hashlib.file_digest(stream, "sha256").hexdigest()])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _hold_out(train: list[OpenSource], fraction: float) -> tuple[list[OpenSource], list[TokenStore]]:
    """Split each store's documents; which are held out depends on nothing but their number."""
    kept: list[OpenSource] = []
    held_out: list[TokenStore] = []
    for source in train:
        stores = []
        for store in source.stores:
            training, own = held_out_split(len(store), fraction)
            stores.append(store.select(training, "training part"))
            if len(own):
                held_out.append(store.select(own, "held-out part"))
        kept.append(OpenSource(source.spec, stores))
    if not held_out:
        documents = sum(len(store) for source in train for store in source.stores)
        raise UserError(
            f"data.validation_fraction {fraction} needs at least two documents in a source to hold one out; the "
            f"training data have {documents} (a text file is one document); give data.validation instead"
        )
    return kept, held_out
