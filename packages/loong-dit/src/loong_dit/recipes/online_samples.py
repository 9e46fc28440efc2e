"""Samples without a cache: a listed picture or video is encoded when a step asks for it.

Sizes come from the files' headers, before the first step. What a sample becomes is decided by the functions that make a
cache, so that a run on either is the same run.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from loong_core.errors import ConfigError, Fault, UserError
from loong_core.wording import counted
from loong_dit.codecs.facts import TextFacts, VaeFacts, text_facts, vae_facts
from loong_dit.codecs.opening import open_image_encoder, open_text_encoder, open_vae
from loong_dit.data.cache import CachedSample, SampleSize
from loong_dit.media.buckets import Buckets, parse_sizes
from loong_dit.media.reading import Listed, MediaError, media_size, read_list
from loong_dit.model_source import ModelSource
from loong_dit.recipes.sample_encoder import (
    EncodingSettings,
    SampleEncoder,
    encoding_faults,
    frames_of,
    known_manifest,
    reference_size,
)
from loong_dit.recipes.training_config import OnlineSection

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_KEYS = {
    "--vae": "data.online.vae",
    "--text-encoder": "data.online.text_encoder",
    "--size": "data.online.sizes",
    "--frames": "data.online.frames",
    "--model": "model.source",
}


@dataclass(frozen=True)
class OnlinePlan:
    """What is known before anything is encoded.

    Attributes:
        listed: the samples that can be used.
        sizes: of each, as they will be.
        left_out: what is wrong with the files that cannot.
        vae, text: what encodes, from the configs.
    """

    listed: Sequence[Listed]
    sizes: Sequence[SampleSize]
    left_out: Sequence[str]
    vae: VaeFacts
    text: TextFacts


def plan_online(section: OnlineSection, source: ModelSource) -> OnlinePlan:
    """Read the list, the headers of its files and the encoders' configs.

    Raises:
        ConfigError: with every fault: absent or damaged media, and encoders and sizes that the model does not take.
        UserError: the list or a config cannot be read, or there is no encoder.
    """
    vae = vae_facts(section.vae or source.pipeline)
    text = text_facts(_text_source(section, source))
    base = None if section.base is None else Path(section.base).expanduser()
    listed = read_list(Path(section.media).expanduser(), base)
    settings = _settings(section)
    has_images = source.pipeline is not None and (source.pipeline / "image_encoder" / "config.json").is_file()
    faults = [
        Fault(_KEYS.get(each.where, each.where), each.what, each.fix)
        for each in encoding_faults(source, vae, text, settings.buckets, sees_images=has_images)
    ]
    kept, sizes, left_out = [], [], []
    for each in listed:
        try:
            sizes.append(_size(each, settings, vae, source))
            kept.append(each)
        except MediaError as error:
            left_out.append(str(error))
    if section.bad_media == "stop":
        fix = "mend or remove them, or set data.online.bad_media=skip"
        faults += [Fault("data.online.media", line, fix) for line in left_out[:40]]
    if faults:
        raise ConfigError(faults)
    if not kept:
        raise UserError(f"data.online.media: none of the files that {section.media} lists can be read")
    return OnlinePlan(kept, sizes, left_out, vae, text)


def open_online(section: OnlineSection, source: ModelSource, device: torch.device, plan: OnlinePlan) -> OnlineSamples:
    """Open the encoders on `device`.

    Raises:
        UserError: one cannot be opened.
    """
    dtype = _DTYPES[section.precision]
    encoder = SampleEncoder(
        source,
        open_vae(section.vae or source.pipeline, device, dtype),
        open_text_encoder(
            _text_source(section, source), section.longest_caption, device, source.family.caption_frame, dtype
        ),
        _settings(section),
        open_image_encoder(source.pipeline, device) if source.config.image_dim is not None else None,
    )
    return OnlineSamples(plan, source, encoder)


class OnlineSamples:
    """Listed media as samples; without an encoder only what is known of them.

    Args:
        plan: from `plan_online`.
        source: the model that is to be trained.
        encoder: what encodes, on the training device.
    """

    def __init__(self, plan: OnlinePlan, source: ModelSource, encoder: SampleEncoder | None = None) -> None:
        self.samples, self.left_out = plan.sizes, list(plan.left_out)
        self.encoder = encoder
        self._listed = plan.listed
        self._encoded, self._seconds = 0, 0.0
        manifest = known_manifest(source, plan.vae, plan.text) if encoder is None else encoder.manifest()
        rows = [[str(each.path), each.caption, *map(str, each.references)] for each in plan.listed]
        digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
        self.manifest = replace(manifest, samples=len(rows), settings={**manifest.settings, "list": digest})

    def __len__(self) -> int:
        return len(self._listed)

    def read(self, number: int) -> CachedSample:
        """The sample, encoded now; in the place of one that proves damaged, the next of its size, where that is wanted.

        Raises:
            UserError: the file cannot be read, and that is an end.
        """
        begin = time.perf_counter()
        encoder = self._opened()
        wanted = self.samples[number]
        for turn in range(len(self)):
            place = (number + turn) % len(self)
            if (self.samples[place].size, self.samples[place].references) != (wanted.size, wanted.references):
                continue
            try:
                sample = encoder.encode(self._listed[place])
            except MediaError as error:
                if encoder.settings.bad_media == "stop":
                    raise UserError(
                        f"{error}; mend or remove it, or set data.online.bad_media=skip to take the next in its place"
                    ) from error
                if str(error) not in self.left_out:
                    self.left_out.append(str(error))
                continue
            self._encoded += 1
            self._seconds += time.perf_counter() - begin
            return sample
        raise UserError(f"none of the listed files of the size of {wanted.source} can be read")

    def empty_text(self) -> torch.Tensor:
        """`[text tokens, text_dim]` of the empty caption."""
        return self._opened().caption("")

    def told(self) -> str:
        """Since the last time: samples encoded and the seconds each took; and how many files are left out."""
        encoded, seconds = self._encoded, self._seconds
        self._encoded, self._seconds = 0, 0.0
        each = f"{seconds / encoded:.3f} s each" if encoded else "none"
        out = f", {counted(len(self.left_out), 'file')} left out" if self.left_out else ""
        return f"encoded online: {counted(encoded, 'sample')}, {each}{out}"

    def _opened(self) -> SampleEncoder:
        if self.encoder is None:
            raise RuntimeError("these samples are known by size only: open_online opens what encodes them")
        return self.encoder


def _settings(section: OnlineSection) -> EncodingSettings:
    buckets = Buckets(parse_sizes(section.sizes), tuple(sorted(section.frames)))
    return EncodingSettings(buckets, _DTYPES[section.dtype], section.bad_media)


def _text_source(section: OnlineSection, source: ModelSource) -> str | Path:
    found = section.text_encoder or source.pipeline
    if found is None:
        raise UserError(f"data.online.text_encoder: is not set, and {source.name} is no pipeline's folder that has one")
    return found


def _size(each: Listed, settings: EncodingSettings, vae: VaeFacts, source: ModelSource) -> SampleSize:
    frames, rows, columns = media_size(each.path)
    taken = frames_of(each, frames, settings.buckets)
    fitted = settings.buckets.size_for(rows, columns)
    steps = vae.steps
    references = []
    for path in each.references:
        size = reference_size(media_size(path)[1:], settings.references, vae, source)
        references.append((size[0] // steps[1], size[1] // steps[2]))
    return SampleSize(
        shard="",
        key="",
        size=((taken - 1) // steps[0] + 1, fitted[0] // steps[1], fitted[1] // steps[2]),
        text_tokens=1 + len(each.caption.split()),
        references=tuple(references),
        source=str(each.path),
        caption=each.caption,
    )
