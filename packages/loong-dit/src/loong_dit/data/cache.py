"""A latent cache: samples' latents and captions' embeddings in safetensors shards, their sizes in a parquet index.

Writing goes into a hidden folder that appears under its name when the manifest is written. Reading maps the shards, so
that a sample costs its own bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from loong_core.errors import Fault, UserError
from loong_dit.data.manifest import INDEX, Manifest, read_manifest

SHARD_BYTES = 512 * 2**20
"""A shard is closed when it holds so much."""
EMPTY = "empty"
"""Key of the empty caption, which stands for a caption that is dropped."""


@dataclass(frozen=True)
class CachedSample:
    """A sample as it is stored.

    Attributes:
        latents: `[channels, frames, rows, columns]`, or twice the channels for moments: means, then deviations.
        text: `[text tokens, text_dim]`.
        condition: `[condition channels, frames, rows, columns]`, what stands beside the noisy latents, or None.
        image: `[image tokens, image_dim]`, or None.
        references: further latents `[channels, 1, rows, columns]` each, whose tokens follow the noisy ones.
    """

    latents: Tensor
    text: Tensor
    condition: Tensor | None = None
    image: Tensor | None = None
    references: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class SampleSize:
    """Where a sample is and how large, as the index has it.

    Attributes:
        shard: the file.
        key: what its tensors' names begin with.
        size: frames, rows and columns of its latents.
        text_tokens: of its caption.
        references: rows and columns of each reference.
        source: the media file.
        caption: the text.
    """

    shard: str
    key: str
    size: tuple[int, int, int]
    text_tokens: int
    references: tuple[tuple[int, int], ...]
    source: str
    caption: str


class CacheWriter:
    """A cache in the making.

    Args:
        folder: where it is to appear; must be absent or empty.
        manifest: what it is, its samples and shards still unknown.
        empty_text: the empty caption's embedding.

    Raises:
        UserError: the folder is taken.
    """

    def __init__(self, folder: Path, manifest: Manifest, empty_text: Tensor, *, shard_bytes: int = SHARD_BYTES) -> None:
        self.folder = folder.absolute()
        self._partial = self.folder.with_name(f".{self.folder.name}.partial")
        self._manifest = manifest
        self._shard_bytes = shard_bytes
        self._rows: list[dict[str, Any]] = []
        self._tensors: dict[str, Tensor] = {EMPTY: _own(empty_text)}
        self._hashes: dict[str, str] = {}
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise UserError(f"{folder} exists and is not empty: choose another folder or remove it")
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(parents=True)

    def add(self, sample: CachedSample, *, source: str, caption: str) -> None:
        """One more sample."""
        key = f"{len(self._rows):09}"
        named = {"latents": sample.latents, "text": sample.text, "condition": sample.condition, "image": sample.image}
        named |= {f"reference.{number}": each for number, each in enumerate(sample.references)}
        self._tensors |= {f"{key}.{name}": _own(each) for name, each in named.items() if each is not None}
        frames, rows, columns = sample.latents.shape[1:]
        self._rows.append(
            {
                "shard": self._shard_name(),
                "key": key,
                "frames": frames,
                "rows": rows,
                "columns": columns,
                "text_tokens": sample.text.shape[0],
                "references": [list(each.shape[-2:]) for each in sample.references],
                "source": source,
                "caption": caption,
            }
        )
        if sum(each.numel() * each.element_size() for each in self._tensors.values()) >= self._shard_bytes:
            self._close_shard()

    def publish(self) -> Manifest:
        """Write what is left and let the folder appear.

        Raises:
            UserError: there is no sample.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._rows:
            self.discard()
            raise UserError("no sample could be cached: nothing is written")
        if self._tensors:
            self._close_shard()
        pq.write_table(pa.Table.from_pylist(self._rows, _schema()), self._partial / INDEX)
        self._hashes[INDEX] = file_hash(self._partial / INDEX)
        manifest = replace(self._manifest, samples=len(self._rows), shards=dict(self._hashes))
        manifest.write(self._partial)
        if self.folder.exists():
            self.folder.rmdir()
        self._partial.rename(self.folder)
        return manifest

    def discard(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self._partial, ignore_errors=True)

    def _shard_name(self) -> str:
        return f"shard-{len(self._hashes):05}.safetensors"

    def _close_shard(self) -> None:
        name = self._shard_name()
        save_file(self._tensors, self._partial / name)
        self._hashes[name] = file_hash(self._partial / name)
        self._tensors = {}


class LatentCache:
    """A finished cache.

    Args:
        folder: where it is.

    Raises:
        UserError: it is not finished, changed, or damaged.
    """

    def __init__(self, folder: Path) -> None:
        import pyarrow.parquet as pq

        self.folder = folder
        self.manifest = read_manifest(folder)
        missing = [name for name in self.manifest.shards if not (folder / name).is_file()]
        if missing:
            raise UserError(f"{folder}: {', '.join(missing)} of the manifest is missing; make the cache anew")
        if file_hash(folder / INDEX) != self.manifest.shards[INDEX]:
            raise UserError(f"{folder / INDEX} does not match the manifest; make the cache anew")
        self.samples = [_sample_size(row) for row in pq.read_table(folder / INDEX).to_pylist()]
        self._open: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, number: int) -> CachedSample:
        """A sample's tensors, on the host."""
        at = self.samples[number]
        file = self._file(at.shard)

        def tensor(name: str, wanted: bool = True) -> Tensor | None:
            return file.get_tensor(f"{at.key}.{name}") if wanted else None

        latents, text = tensor("latents"), tensor("text")
        assert latents is not None
        assert text is not None
        return CachedSample(
            latents,
            text,
            tensor("condition", self.manifest.condition_channels > 0),
            tensor("image", self.manifest.image_dim is not None),
            tuple(file.get_tensor(f"{at.key}.reference.{each}") for each in range(len(at.references))),
        )

    def empty_text(self) -> Tensor:
        """`[text tokens, text_dim]` of the empty caption."""
        return self._file("shard-00000.safetensors").get_tensor(EMPTY)

    def damaged(self) -> list[Fault]:
        """Files whose bytes are not those that were written; reads all of them."""
        return [
            Fault(str(self.folder / name), "does not match the manifest: it is damaged", "make the cache anew")
            for name, told in self.manifest.shards.items()
            if file_hash(self.folder / name) != told
        ]

    def _file(self, shard: str) -> Any:
        if shard not in self._open:
            try:
                self._open[shard] = safe_open(self.folder / shard, "pt")
            except Exception as error:  # safetensors has an exception of its own for each kind of damage
                raise UserError(f"{self.folder / shard} cannot be read ({error}); make the cache anew") from None
        return self._open[shard]


def draw_latents(sample: CachedSample, manifest: Manifest, noise: Tensor | None) -> Tensor:
    """Latents in float32; of moments, with standard normal `noise` of their shape (None: the means)."""
    if manifest.kind == "values":
        return sample.latents.float()
    mean, deviation = sample.latents.float().chunk(2)
    return mean if noise is None else mean + deviation * noise


def file_hash(file: Path) -> str:
    """Of a file's bytes."""
    digest = xxhash.xxh3_128()
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 24):
            digest.update(chunk)
    return digest.hexdigest()


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """Of tensors' names, shapes and values: what stands for a model that makes latents or embeddings."""
    digest = xxhash.xxh3_128()
    for name in sorted(tensors):
        values = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {list(values.shape)} {values.dtype}".encode())
        digest.update(values.view(torch.uint8).numpy().tobytes() if values.ndim else str(values.item()).encode())
    return digest.hexdigest()


def _own(tensor: Tensor) -> Tensor:
    """A copy that nothing else writes to, or shares."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _sample_size(row: Mapping[str, Any]) -> SampleSize:
    return SampleSize(
        row["shard"],
        row["key"],
        (row["frames"], row["rows"], row["columns"]),
        row["text_tokens"],
        tuple((rows, columns) for rows, columns in row["references"]),
        row["source"],
        row["caption"],
    )


def _schema() -> Any:
    import pyarrow as pa

    number, text = pa.int64(), pa.string()
    return pa.schema(
        {
            "shard": text,
            "key": text,
            "frames": number,
            "rows": number,
            "columns": number,
            "text_tokens": number,
            "references": pa.list_(pa.list_(number)),
            "source": text,
            "caption": text,
        }
    )
