"""The first stage of training: pictures and videos to latents, captions to embeddings, once and for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from loong_core.errors import UserError
from loong_core.wording import counted
from loong_dit.codecs.codec import CaptionEncoder, LatentCodec
from loong_dit.data.cache import CachedSample, CacheWriter
from loong_dit.data.manifest import Manifest
from loong_dit.media.reading import Listed, MediaError
from loong_dit.model_source import ModelSource
from loong_dit.recipes.sample_encoder import EncodingSettings, ImageEncoder, SampleEncoder


def make_cache(
    folder: Path,
    listed: Sequence[Listed],
    source: ModelSource,
    codec: LatentCodec,
    captions: CaptionEncoder,
    settings: EncodingSettings,
    *,
    images: ImageEncoder | None = None,
    say: Callable[[str], None] = print,
) -> Manifest:
    """Encode everything that is listed into `folder`.

    Args:
        folder: must be absent or empty; it appears complete.
        listed: the samples.
        source: the model that is to be trained, which says what conditions it takes.
        codec, captions: what encodes.
        settings: sizes, dtype, and what becomes of damaged files.
        images: encodes condition images, for models that see them so.
        say: is told of progress and of what was left out.

    Raises:
        ConfigError: the model does not fit the codec, or the sizes neither; before anything is encoded.
        UserError: a file cannot be read, or nothing is left.
    """
    encoder = SampleEncoder(source, codec, captions, settings, images)
    writer = CacheWriter(folder, encoder.manifest(), encoder.caption(""))
    left_out: list[str] = []
    try:
        for number, (sample, each) in enumerate(_encoded(listed, encoder, left_out), 1):
            writer.add(sample, source=str(each.path), caption=each.caption)
            if number % 100 == 0:
                say(f"{number:,} of {len(listed):,} samples are cached")
        written = writer.publish()
    except BaseException:
        writer.discard()
        raise
    for line in left_out[:20]:
        say(f"left out: {line}")
    told = f", {len(left_out):,} left out" if left_out else ""
    say(f"{counted(written.samples, 'sample')} cached in {folder}{told}; hash {written.hash}")
    return written


def _encoded(
    listed: Sequence[Listed], encoder: SampleEncoder, left_out: list[str]
) -> Iterator[tuple[CachedSample, Listed]]:
    for each in listed:
        try:
            sample = encoder.encode(each)
        except MediaError as error:
            if encoder.settings.bad_media == "stop":
                raise UserError(
                    f"{error}; mend or remove it, or give --bad-media skip to leave such files out"
                ) from error
            left_out.append(str(error))
            continue
        yield sample, each
