"""Everything of a run's data that shows images, opened: prepared once into a cache, mapped by every rank.

Used as loong-llm's corpora are: `open_vision_corpus(...)`, then `stream`, `held_out`, `warnings`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loong_core.data.shared_build import from_first_rank, on_every_rank
from loong_core.data.sources import weights_of
from loong_core.errors import Fault, UserError
from loong_llm.conversations.opened_source import OpenedSource, hold_out, left_out_texts, made_from_of, opened
from loong_llm.conversations.preparation import BadSamples
from loong_vlm.balance.balancer import Balancer
from loong_vlm.data.collation import Arrange, Collator
from loong_vlm.data.encoding import VisionEncoder
from loong_vlm.data.forms import VisionForm
from loong_vlm.data.held_out import VisionHeldOut
from loong_vlm.data.loading import MediaLoader
from loong_vlm.data.preparation import OnPrepared, VisionRecipe, source_form, write_store
from loong_vlm.data.records import VisionKind, vision_files
from loong_vlm.data.samples import LongVisionSamples, VisionSamples, check_budget
from loong_vlm.data.store import VisionStore, open_vision_store
from loong_vlm.data.stream import VisionStream


@dataclass(frozen=True)
class VisionSource:
    """One entry of a run file's sources.

    Attributes:
        path: a file, a folder (a dataset's too), a glob, tars.
        weight: its share of the sequences, relative to the others'; None: the share of its size.
        form: of its records; None: detected.
        fields: our field name to the file's, where they differ.
        media_root: folder that names of images are relative to; None: each file's own.
    """

    path: str
    weight: float | None = None
    form: VisionForm | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    media_root: str | None = None


@dataclass(frozen=True)
class VisionSettings:
    """What to read and how to lay it out.

    Attributes:
        train: training sources.
        cache: folder for prepared samples; all ranks must see it.
        sequence_length: places of a sequence.
        patch_budget: patches that a sequence holds; None: any number.
        validation: held-out sources.
        validation_fraction: share of the training samples to hold out, 0 to below 1.
        bad_samples: whether a sample that cannot be trained on stops the run or is left out.
        long_samples: what becomes of a sample that does not fit a sequence.
        packing: whether samples share sequences.
        multiple: each sample's places are filled up to a multiple of this.
        seed: decides the order of samples.
        workers: processes that prepare.
        threads: that decode images during the run, on each rank.
    """

    train: tuple[VisionSource, ...]
    cache: Path
    sequence_length: int
    patch_budget: int | None = None
    validation: tuple[VisionSource, ...] = ()
    validation_fraction: float = 0.0
    bad_samples: BadSamples = "stop"
    long_samples: LongVisionSamples = "truncate"
    packing: bool = True
    multiple: int = 1
    seed: int = 0
    workers: int = 1
    threads: int = 2


OpenVision = OpenedSource[VisionSource, VisionStore]
"""One source's samples, and what became of its records."""


class VisionCorpus:
    """The opened data of a run.

    Args:
        settings: what was read.
        encoder: how.
        train: training sources.
        held_out: held-out ones.
        arrange: see `Collator`.
        balancer: deals global batches out to data ranks; None: they come in turn.
        on_blank: see `MediaLoader`.
    """

    def __init__(
        self,
        settings: VisionSettings,
        encoder: VisionEncoder,
        train: list[OpenVision],
        held_out: list[OpenVision],
        arrange: Arrange,
        balancer: Balancer | None = None,
        on_blank: Callable[[str, int], None] | None = None,
    ) -> None:
        if encoder.processor is None:
            raise ValueError("a corpus with images needs a pixel processor")
        self.settings = settings
        self.encoder = encoder
        self.train = train
        self._held_out = held_out
        self._balancer = balancer
        self._loader = MediaLoader(
            encoder.processor,
            threads=settings.threads,
            broken="blank" if settings.bad_samples == "skip" else "stop",
            on_blank=on_blank,
        )
        self._collator = Collator(self._loader, arrange)
        self._samples: list[VisionSamples] | None = None

    def warnings(self) -> list[str]:
        """What a user should know before the run: samples left out, template trouble."""
        return [*self.encoder.text.warnings(), *left_out_texts(self.train + self._held_out)]

    def samples(self) -> list[VisionSamples]:
        """The packed training samples, one a source; packed when first asked for."""
        if self._samples is None:
            settings = self.settings
            self._samples = [
                VisionSamples(
                    part.store,
                    settings.sequence_length,
                    patch_budget=settings.patch_budget,
                    long_samples=settings.long_samples,
                    packing=settings.packing,
                    multiple=settings.multiple,
                    seed=settings.seed,
                    source=number,
                )
                for number, part in enumerate(self.train)
            ]
        return self._samples

    def report(self) -> list[str]:
        """A few lines a source: its samples, their images, and how well they are packed."""
        lines = []
        for part, own in zip(self.train, self.samples(), strict=True):
            media, count = part.store.media, part.count
            shown = len(media.rows)
            lines.append(
                f"{part.source.path}: {count.samples:,} samples of {count.records:,} records, {shown:,} images and "
                f"videos of {int(media.patches().sum()):,} patches, {count.trained_tokens:,} of {count.tokens:,} "
                "tokens trained on"
            )
            lines.append(f"{part.source.path}: {own.count}")
        return lines

    def stream(
        self,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        data_rank: int = 0,
        data_size: int = 1,
        vocab_size: int | None = None,
    ) -> VisionStream:
        """The training stream of one data rank; arguments and errors are `VisionStream`'s."""
        return VisionStream(
            self.samples(),
            weights_of([part.source for part in self.train]),
            self._collator,
            self._balancer,
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            data_rank=data_rank,
            data_size=data_size,
            vocab_size=vocab_size,
        )

    def held_out(self) -> VisionHeldOut | None:
        """The held-out sequences, None if the run has none."""
        if not self._held_out:
            return None
        settings = self.settings
        return VisionHeldOut(
            [part.store for part in self._held_out],
            settings.sequence_length,
            self._collator,
            patch_budget=settings.patch_budget,
            multiple=settings.multiple,
        )

    def close(self) -> None:
        """End the threads that decode."""
        self._loader.close()


def open_vision_corpus(
    settings: VisionSettings,
    encoder: VisionEncoder,
    arrange: Arrange,
    *,
    balancer: Balancer | None = None,
    on_prepared: OnPrepared | None = None,
    on_blank: Callable[[str, int], None] | None = None,
) -> VisionCorpus:
    """Open a run's data. Collective over the default process group, if there is one.

    Args:
        settings: what to read.
        encoder: tokenizer, template, and how images are read and written.
        arrange: makes a batch that the model takes, see `Collator`.
        balancer: deals global batches out to data ranks.
        on_prepared: called on rank 0 while it prepares.
        on_blank: told of images that cannot be decoded during the run, see `MediaLoader`.

    Raises:
        UserError: what is wrong with the data, on every rank.
    """
    check_budget(settings.patch_budget, settings.sequence_length)
    weights_of(settings.train)
    train = [_open(source, settings, encoder, on_prepared) for source in settings.train]
    held_out = [_open(source, settings, encoder, on_prepared) for source in settings.validation]
    if settings.validation_fraction:
        train, split = hold_out(train, settings.validation_fraction)
        held_out += split
    return VisionCorpus(settings, encoder, train, held_out, arrange, balancer, on_blank)


def vision_faults(sources: tuple[VisionSource, ...], where: str) -> list[Fault]:
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
            source_form(vision_files(source.path), source.form, source.fields, source.media_root)
        except UserError as error:
            faults.append(Fault(key, str(error)))
        if source.media_root is not None and not Path(source.media_root).expanduser().is_dir():
            faults.append(Fault(f"{key}.media_root", f"{source.media_root} is no folder"))
    return faults


def _open(
    source: VisionSource, settings: VisionSettings, encoder: VisionEncoder, on_prepared: OnPrepared | None
) -> OpenVision:
    files = on_every_rank(lambda: vision_files(source.path))
    folder, digest = from_first_rank(lambda: _build(source, files, settings, encoder, on_prepared))
    store = on_every_rank(lambda: open_vision_store(folder, source.path, verify=False, digest=digest))
    return opened(source, store, made_from_of(folder))


def _build(
    source: VisionSource,
    files: list[tuple[Path, VisionKind]],
    settings: VisionSettings,
    encoder: VisionEncoder,
    on_prepared: OnPrepared | None,
) -> tuple[Path, str]:
    folder = settings.cache / _cache_key(source, files, settings, encoder)
    if not folder.is_dir():
        form = source_form(files, source.form, source.fields, source.media_root)
        recipe = VisionRecipe(encoder, form, source.fields, settings.bad_samples)
        write_store(
            source.path,
            files,
            folder,
            recipe,
            media_root=source.media_root,
            workers=settings.workers,
            on_prepared=on_prepared,
        )
    return folder, open_vision_store(folder, source.path, verify=True).tokens.digest


def _cache_key(
    source: VisionSource, files: list[tuple[Path, VisionKind]], settings: VisionSettings, encoder: VisionEncoder
) -> str:
    """Records by their content; tars, which may be large, by path, size and time of change."""
    parts: list[object] = [1, encoder.fingerprint, source.form, dict(source.fields), source.media_root]
    parts.append(settings.bad_samples)
    for path, kind in files:
        if kind == "tar":
            state = path.stat()
            parts.append([kind, str(path.absolute()), state.st_size, state.st_mtime_ns])
            continue
        with path.open("rb") as stream:
            parts.append([kind, str(path.absolute().parent), hashlib.file_digest(stream, "sha256").hexdigest()])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
