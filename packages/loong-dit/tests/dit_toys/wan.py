"""Tiny Wan transformers, and batches for them."""

from __future__ import annotations

import torch

from loong_core.parallel.context import ParallelContext
from loong_dit.batch import DiffusionBatch
from loong_dit.families.wan import WAN
from loong_dit.packing import Lengths, grid_positions, to_patches

TINY = {
    "_class_name": "WanTransformer3DModel",
    "patch_size": [1, 2, 2],
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": 16,
    "freq_dim": 32,
    "ffn_dim": 32,
    "num_layers": 2,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "eps": 1e-6,
    "image_dim": None,
    "added_kv_proj_dim": None,
    "rope_max_seq_len": 32,
    "pos_embed_seq_len": None,
}
IMAGE_TO_VIDEO = {**TINY, "in_channels": 9, "image_dim": 10, "added_kv_proj_dim": 24}
FIRST_AND_LAST = {**IMAGE_TO_VIDEO, "pos_embed_seq_len": 14}


def randomised(module, seed=0):
    """Every parameter drawn anew, also those that start as zeros or ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return module


def wan(hf=TINY, dtype=torch.float64, context=None, seed=0):
    config = WAN.config(hf)
    return randomised(WAN.build(config, context or ParallelContext.single(), dtype), seed)


def batch_of(latents, timesteps, text, patch=(1, 2, 2), image=None, runs=None, **more):
    """A batch of `latents` ([channels, frames, rows, columns] each), one timestep a sample unless `runs` are given."""
    sizes = [tuple(each.shape[1:]) for each in latents]
    patches = [to_patches(each, patch) for each in latents]
    tokens = Lengths.of([len(each) for each in patches])
    captions = Lengths.of([len(each) for each in text])
    images = None if image is None else Lengths.of([len(each) for each in image])
    return DiffusionBatch(
        patches=torch.cat(patches),
        positions=torch.cat([grid_positions(size, patch) for size in sizes]),
        cu_seqlens=tokens.bounds,
        max_seqlen=tokens.longest,
        uniform_length=tokens.uniform,
        timesteps=timesteps,
        run_bounds=tokens.bounds if runs is None else runs,
        text=torch.cat(list(text)),
        text_pairs=tokens.seeing(captions),
        image=None if image is None else torch.cat(list(image)),
        image_pairs=None if images is None else tokens.seeing(images),
        **more,
    )
