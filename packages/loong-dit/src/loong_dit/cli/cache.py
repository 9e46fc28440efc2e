"""`loong-dit cache LIST --model NAME --output DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def cache(
    media: Annotated[
        Path,
        typer.Argument(
            metavar="LIST", help="A .csv, .json or .jsonl with video or image, prompt, edit_image.", show_default=False
        ),
    ],
    model: Annotated[str, typer.Option(help="What is to be trained: a named size, or a folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The cache to write.")],
    size: Annotated[list[str], typer.Option(help="Rows x columns, as 480x832; repeated, the nearest shape is taken.")],
    frames: Annotated[list[int] | None, typer.Option(help="Repeated, the most that there are; 1 by default.")] = None,
    vae: Annotated[str | None, typer.Option(help="A VAE's folder, pixels, or pixels-grey; the model's own.")] = None,
    text_encoder: Annotated[str | None, typer.Option(help="A pipeline's folder, or words-N; the model's own.")] = None,
    base: Annotated[Path | None, typer.Option(help="Folder that paths are relative to; the list's own.")] = None,
    dtype: Annotated[Literal["fp32", "bf16"], typer.Option(help="Of what is stored.")] = "bf16",
    bad_media: Annotated[
        Literal["stop", "skip"], typer.Option(help="What becomes of files that are damaged.")
    ] = "stop",
    longest_caption: Annotated[int, typer.Option(min=1, help="Tokens beyond which a caption is cut.")] = 512,
    device: Annotated[str, typer.Option(help="Where the encoders compute.")] = "auto",
) -> None:
    """Encode pictures and videos to latents and their captions to embeddings, for `train` to read."""
    import torch

    from loong_core.device import select
    from loong_core.errors import UserError
    from loong_dit.codecs.opening import open_image_encoder, open_text_encoder, open_vae
    from loong_dit.media.buckets import Buckets, parse_sizes
    from loong_dit.media.reading import read_list
    from loong_dit.model_source import open_source
    from loong_dit.recipes.make_cache import make_cache
    from loong_dit.recipes.sample_encoder import EncodingSettings

    source = open_source(model)
    buckets = Buckets(parse_sizes(size), tuple(sorted(frames or [1])))
    listed = read_list(media, base)
    if (vae is None or text_encoder is None) and source.pipeline is None:
        raise UserError(f"{model} is no pipeline's folder, so --vae and --text-encoder have to be given")
    where = select(device).device.bind(0)
    make_cache(
        output,
        listed,
        source,
        open_vae(vae or source.pipeline, where),
        open_text_encoder(text_encoder or source.pipeline or "", longest_caption, where, source.family.caption_frame),
        EncodingSettings(buckets, {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype], bad_media),
        images=open_image_encoder(source.pipeline, where) if source.config.image_dim is not None else None,
        say=typer.echo,
    )
