"""What diffusers makes of a folder that we have written."""

from __future__ import annotations

import torch

from loong_core.errors import UserError
from loong_core.parallel.context import ParallelContext
from loong_dit.data.assembly import pack_samples, padded
from loong_dit.model import build_module, fill_module
from loong_dit.model_source import ModelSource


@torch.no_grad()
def largest_difference(source: ModelSource, *, frames: int = 3, side: int = 4, text_tokens: int = 5) -> float:
    """The largest difference between diffusers' output and ours, in float32 on random input.

    Args:
        source: a folder with weights, of a family whose transformer takes videos.
        frames, side: size of the latents in patches.
        text_tokens: of the caption.

    Raises:
        UserError: the folder has no weights, or diffusers is missing.
    """
    try:
        import diffusers
    except ImportError as error:
        raise UserError("diffusers is not installed; pip install 'loong-dit[diffusers]'") from error
    (folder,) = list(source.parts.values())[:1]
    if folder is None:
        raise UserError(f"{source.name} has no weights to compare")
    reference = getattr(diffusers, source.family.class_name).from_pretrained(folder).float().eval()
    context, form, config = ParallelContext.single(), source.family.patch_form(source.config), source.config
    module = build_module(source, context)
    fill_module(module, source, context)
    generator = torch.Generator().manual_seed(0)
    t, h, w = config.patch_size
    size = (frames * t, side * h, side * w)
    latents = torch.randn(config.in_channels, *size, generator=generator)
    text = padded(torch.randn(text_tokens, config.text_dim, generator=generator), source.text_length)
    timestep = 625.0
    batch = pack_samples(
        patches=[form.inputs(latents)],
        positions=[form.positions(size)],
        runs=[(form.tokens(size), timestep)],
        text=[text],
        joint=form.joint_text,
    )
    ours = form.latents(module(batch), size)
    theirs = reference(latents[None], torch.tensor([timestep]), text[None], return_dict=False)[0][0]
    return float((ours - theirs).abs().max())
