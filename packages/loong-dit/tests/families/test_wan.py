"""A Wan transformer equals diffusers' in float64: what it says, and the gradient of every parameter."""

import pytest
import torch
from dit_toys.reference import copy_weights, float64_throughout, gradients
from dit_toys.wan import FIRST_AND_LAST, IMAGE_TO_VIDEO, TINY, batch_of, wan

from loong_dit.families.wan import WAN
from loong_dit.packing import from_patches

diffusers = pytest.importorskip("diffusers")


def reference_of(hf):
    config = {key: value for key, value in hf.items() if not key.startswith("_")}
    return diffusers.WanTransformer3DModel(**config).double()


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def compare(hf, latents, timesteps, text, image=None, token_times=None):
    """Ours on the packed batch against the reference on the padded one; `latents` are of one size."""
    config = WAN.config(hf)
    ours, weight_map = wan(hf), WAN.weight_map(config)
    reference = reference_of(hf)
    copy_weights(ours, reference, weight_map)
    upstream = normal(len(latents), config.out_channels, *latents[0].shape[1:], seed=9)
    with float64_throughout():
        times = timesteps if token_times is None else token_times
        expected = reference(latents, times, text, image, return_dict=False)[0]
        (expected * upstream).sum().backward()
    runs = None
    if token_times is not None:
        timesteps, runs = token_times.flatten(), torch.arange(token_times.numel() + 1, dtype=torch.int32)
    said = ours(batch_of(latents, timesteps, text, config.patch_size, image=image, runs=runs))
    size = latents.shape[2:]
    videos = torch.stack([from_patches(each, size, config.patch_size) for each in said.chunk(len(latents))])
    torch.testing.assert_close(videos, expected, rtol=1e-9, atol=1e-11)
    (videos * upstream).sum().backward()
    wanted = dict(reference.named_parameters())
    found = gradients(ours, weight_map)
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name].grad, rtol=1e-8, atol=1e-10, msg=name)


TIMES = torch.tensor([987.5, 13.0, 500.0])


@pytest.mark.parametrize(
    "hf",
    [TINY, {**TINY, "cross_attn_norm": False}, {**TINY, "patch_size": [2, 2, 1]}],
    ids=["tiny", "no norm before cross-attention", "other patches"],
)
def test_text_to_video_equals_diffusers(hf):
    compare(hf, normal(3, 4, 2, 4, 6), TIMES, normal(3, 5, 16, seed=2))


def test_a_timestep_for_each_token_equals_diffusers():
    times = torch.linspace(0, 1000, 3 * 12).reshape(3, 12)
    compare(TINY, normal(3, 4, 2, 4, 6), None, normal(3, 5, 16, seed=2), token_times=times)


@pytest.mark.parametrize("hf", [IMAGE_TO_VIDEO, FIRST_AND_LAST], ids=["one image", "first and last"])
def test_image_to_video_equals_diffusers(hf):
    tokens = 14 if hf["pos_embed_seq_len"] else 6
    image = normal(2, tokens, 10, seed=3)
    if hf["pos_embed_seq_len"]:
        image = image.view(2, 2, 7, 10).flatten(0, 1)  # diffusers takes both images of a video apart
        compare_first_and_last(hf, image)
    else:
        compare(hf, normal(2, 9, 2, 4, 6), TIMES[:2], normal(2, 512, 16, seed=2), image=image)


def compare_first_and_last(hf, image):
    config = WAN.config(hf)
    ours, reference = wan(hf), reference_of(hf)
    copy_weights(ours, reference, WAN.weight_map(config))
    latents, text = normal(2, 9, 2, 4, 6), normal(2, 512, 16, seed=2)
    with float64_throughout():
        expected = reference(latents, TIMES[:2], text, image, return_dict=False)[0]
    said = ours(batch_of(latents, TIMES[:2], text, image=image.view(2, 14, 10)))
    videos = torch.stack([from_patches(each, (2, 4, 6), config.patch_size) for each in said.chunk(2)])
    torch.testing.assert_close(videos, expected, rtol=1e-9, atol=1e-11)


def test_samples_of_different_sizes_in_one_batch_do_as_each_does_alone():
    model = wan()
    latents = [normal(4, 2, 4, 6), normal(4, 1, 2, 2, seed=4), normal(4, 3, 4, 4, seed=5)]
    text = [normal(5, 16, seed=6), normal(1, 16, seed=7), normal(3, 16, seed=8)]
    together = model(batch_of(latents, TIMES, text))
    for parameter in model.parameters():
        parameter.grad = None
    together.square().sum().backward()
    packed = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = None
    alone = [model(batch_of([each], TIMES[n : n + 1], [text[n]])) for n, each in enumerate(latents)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-10, atol=1e-12)
    sum(each.square().sum() for each in alone).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(packed[name], parameter.grad, rtol=1e-9, atol=1e-11, msg=name)
