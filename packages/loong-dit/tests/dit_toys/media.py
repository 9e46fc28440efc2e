"""A few pictures and a video with captions, and a pipeline whose VAE and text encoder are tiny and random."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from PIL import Image

from dit_toys.runs import write_model
from dit_toys.wan import TINY
from loong_dit.media.writing import write_video


def write_media(folder):
    """A list of two pictures of different shapes and a video of five frames."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for name, size in (("wide.png", (24, 40)), ("tall.png", (40, 24))):
        Image.fromarray(generator.integers(0, 255, (*size, 3), dtype=np.uint8)).save(folder / name)
    write_video(folder / "moves.mp4", torch.rand(3, 5, 32, 32) * 2 - 1, fps=8)
    rows = [{"image": "wide.png", "prompt": "wide"}, {"image": "tall.png", "prompt": "tall"}]
    rows += [{"image": "moves.mp4", "prompt": "it moves"}]
    with (folder / "list.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["image", "prompt"])
        writer.writeheader()
        writer.writerows(rows)
    return folder / "list.csv"


def tiny_pipeline(folder):
    """A pipeline with a tiny Wan VAE and a tiny T5, all random."""
    diffusers = pytest.importorskip("diffusers")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

    write_model(
        folder, {**TINY, "in_channels": 4, "out_channels": 4}, parts=("transformer",), _class_name="WanPipeline"
    )
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKLWan(
        base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
        latents_mean=[0.1, 0.2, 0.3, 0.4], latents_std=[1.0, 2.0, 3.0, 4.0],
    )  # fmt: skip
    vae.save_pretrained(folder / "vae")
    config = T5Config(vocab_size=12, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    T5EncoderModel(config).save_pretrained(folder / "text_encoder")
    words = {word: number for number, word in enumerate(["<pad>", "<unk>", "wide", "tall", "it", "moves"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    from tokenizers.processors import TemplateProcessing

    tokenizer.post_processor = TemplateProcessing(single="$A <unk>", special_tokens=[("<unk>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>").save_pretrained(
        folder / "tokenizer"
    )
    return vae.eval(), folder
