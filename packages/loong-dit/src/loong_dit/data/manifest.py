"""The manifest of a latent cache: what made it, what is in it, and a hash that stands for all of that. No torch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from loong_core.errors import UserError

MANIFEST = "manifest.json"
INDEX = "index.parquet"
FORMAT = 1

LatentKind = Literal["moments", "values"]


@dataclass(frozen=True)
class Manifest:
    """What a cache is.

    Attributes:
        kind: `moments` are a mean and a standard deviation for each number, stored channel after channel, from which
            every use draws anew; `values` are the latents themselves.
        channels: of the latents.
        text_dim: width of the captions' embeddings.
        image_dim: width of condition images' embeddings, None where there are none.
        condition_channels: of the channels that stand beside the noisy latents, 0 where there are none.
        samples: how many there are.
        vae: name and hash of what made the latents.
        text_encoder: name and hash of what made the embeddings.
        settings: sizes, buckets and dtypes it was made with.
        shards: hash of each file's bytes, by name, the index among them.
        format: of the cache.
    """

    kind: LatentKind
    channels: int
    text_dim: int
    samples: int
    vae: dict[str, str]
    text_encoder: dict[str, str]
    image_dim: int | None = None
    condition_channels: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    shards: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def hash(self) -> str:
        """Of everything the manifest says."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]

    def write(self, folder: Path) -> None:
        """Into `folder`, last of all."""
        text = json.dumps({**asdict(self), "hash": self.hash}, indent=1) + "\n"
        temporary = folder / f".{MANIFEST}.tmp"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / MANIFEST)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a cache.

    Raises:
        UserError: there is none, or it has been changed.
    """
    file = folder / MANIFEST
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; `loong-dit cache` makes a cache")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        told = values.pop("hash")
        manifest = Manifest(**values)
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no {MANIFEST}, so it is no finished cache; let `loong-dit cache` end, or make it anew"
        ) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{file} cannot be read ({type(error).__name__}: {error}); make the cache anew") from None
    if manifest.format != FORMAT:
        raise UserError(f"{file} is of format {manifest.format}, this version reads {FORMAT}; make the cache anew")
    if manifest.hash != told:
        raise UserError(f"{file} does not match its own hash: it was changed by hand; make the cache anew")
    return manifest
