"""A Qwen-Image transformer equals diffusers' in float64: what it says, and the gradient of every parameter.

The reference takes its cosines and sines from float32 tables, so that a last bit of these is what may differ.
"""

import pytest
import torch
from dit_toys.reference import copy_weights, float64_throughout, gradients
from dit_toys.wan import randomised

from loong_core.parallel.context import ParallelContext
from loong_dit.data.assembly import pack_samples
from loong_dit.families.qwen_image import QWEN_IMAGE
from loong_dit.nn.embeddings import sinusoids

diffusers = pytest.importorskip("diffusers")

TINY = {
    "_class_name": "QwenImageTransformer2DModel",
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 4,
    "num_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 12,
    "guidance_embeds": False,
    "axes_dims_rope": [8, 4, 4],
    "zero_cond_t": False,
}


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Float32Sinusoids(torch.nn.Module):
    """The reference's own, on the timestep in float32, as it is when the model is in float32."""

    def __init__(self, own):
        super().__init__()
        self.own = own

    def forward(self, timestep):
        return self.own(timestep.to(torch.float32)).double()


def both(hf):
    config = QWEN_IMAGE.config(hf)
    ours = randomised(QWEN_IMAGE.build(config, ParallelContext.single(), torch.float64))
    reference = diffusers.QwenImageTransformer2DModel(**{k: v for k, v in hf.items() if k[0] != "_"}).double()
    reference.time_text_embed.time_proj = Float32Sinusoids(reference.time_text_embed.time_proj)
    copy_weights(ours, reference, QWEN_IMAGE.weight_map(config))
    return ours, reference, config


def batch_of(config, images, levels, text, references=None, *, clean=False):
    """Samples of one image `[channels, 1, rows, columns]` each and, after it, one reference."""
    form = QWEN_IMAGE.patch_form(config)
    patches, positions, runs = [], [], []
    for number, (image, level) in enumerate(zip(images, levels)):
        parts, places = [form.inputs(image)], [form.positions(image.shape[1:])]
        runs.append((len(parts[0]), 1000 * level))
        if references is not None:
            parts.append(form.inputs(references[number]))
            places.append(form.positions(references[number].shape[1:], image=1))
            runs.append((len(parts[1]), 0.0 if clean else 1000 * level))
        patches.append(torch.cat(parts))
        positions.append(torch.cat(places))
    return pack_samples(patches=patches, positions=positions, runs=runs, text=text, joint=True)


LEVELS = [0.5, 0.125]
"""Their products with a frequency and with 1000 are rounded alike in either order."""


@pytest.mark.parametrize("zero_cond_t", [None, False, True], ids=["text to image", "edit", "edit, clean references"])
def test_it_equals_diffusers(zero_cond_t):
    hf = {**TINY, "zero_cond_t": bool(zero_cond_t)}
    ours, reference, config = both(hf)
    images, text = normal(2, 4, 1, 6, 10), normal(2, 5, 12, seed=2)
    references = None if zero_cond_t is None else normal(2, 4, 1, 4, 6, seed=3)
    form = QWEN_IMAGE.patch_form(config)
    tokens, shapes = [form.inputs(each) for each in images], [(1, 3, 5)]
    if references is not None:
        tokens = [torch.cat([each, form.inputs(other)]) for each, other in zip(tokens, references)]
        shapes.append((1, 2, 3))
    upstream = normal(2, 15, 16, seed=4)
    with float64_throughout():
        expected = reference(
            torch.stack(tokens), text, timestep=torch.tensor(LEVELS), img_shapes=[shapes] * 2, return_dict=False
        )[0][:, :15]
        (expected * upstream).sum().backward()
    said = ours(batch_of(config, images, LEVELS, list(text), references, clean=bool(zero_cond_t)))
    said = said.view(2, -1, 16)[:, :15]
    torch.testing.assert_close(said, expected, rtol=1e-6, atol=5e-7)
    (said * upstream).sum().backward()
    dead = [f"transformer_blocks.1.{name}" for name in ("attn.to_add_out", "txt_mlp", "attn.norm_added_q")]
    wanted = dict(reference.named_parameters())
    for name, parameter in ours.named_parameters():
        if parameter.grad is None:  # what the last block would make of the text reaches nothing
            assert name.startswith("layers.1.text.")
            parameter.grad = torch.zeros_like(parameter)
    for name, gradient in gradients(ours, QWEN_IMAGE.weight_map(config)).items():
        theirs = wanted[name].grad
        if theirs is None:
            assert any(name.startswith(each) for each in dead), name
            theirs = torch.zeros_like(gradient)
        torch.testing.assert_close(gradient, theirs, rtol=1e-6, atol=5e-6, msg=name)


def test_samples_of_different_sizes_in_one_batch_do_as_each_does_alone():
    ours, _, config = both(TINY)
    images = [normal(4, 1, 6, 10), normal(4, 1, 2, 4, seed=5)]
    text = [normal(5, 12, seed=6), normal(2, 12, seed=7)]
    together = ours(batch_of(config, images, LEVELS, text))
    alone = [ours(batch_of(config, [image], [level], [each])) for image, level, each in zip(images, LEVELS, text)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-9, atol=1e-11)


def test_sinusoids_are_those_of_diffusers():
    from diffusers.models.embeddings import Timesteps

    times = torch.tensor([0.0, 3.25, 999.0])
    own = Timesteps(32, flip_sin_to_cos=True, downscale_freq_shift=0)(times)
    assert torch.equal(sinusoids(times, 32), own)
