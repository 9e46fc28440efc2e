"""The references against mathematics written another way, in float64."""

import pytest
import torch
from torch.nn import functional as F

from loong_kernels.ops.attention.reference import attention_reference
from loong_kernels.ops.linear_cross_entropy.reference import linear_cross_entropy_reference
from loong_kernels.ops.linear_cross_entropy.settings import HeadSettings
from loong_kernels.ops.packed_attention.reference import packed_attention_reference
from loong_kernels.ops.rms_norm.reference import rms_norm_reference
from loong_kernels.ops.rotary.reference import rotary_reference
from loong_kernels.ops.swiglu.reference import swiglu_reference


def random(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def test_rms_norm_equals_torchs():
    x, weight = random(5, 12), random(12)
    torch.testing.assert_close(rms_norm_reference(x, weight, 1e-5), F.rms_norm(x, (12,), weight, 1e-5))


def test_rms_norm_in_bfloat16_rounds_once():
    x, weight = random(50, 64, dtype=torch.bfloat16), random(64, dtype=torch.bfloat16)
    exact = F.rms_norm(x.double(), (64,), weight.double(), 1e-5)
    assert torch.equal(rms_norm_reference(x, weight, 1e-5), exact.float().bfloat16())


def test_rotary_multiplies_complex_numbers():
    q, k, angles = random(6, 4, 10), random(6, 2, 10), random(6, 3).detach()
    for x, rotated in zip((q, k), rotary_reference(q, k, angles.cos(), angles.sin())):
        turned = torch.complex(x[..., :3], x[..., 3:6]) * torch.polar(torch.ones_like(angles), angles)[:, None]
        torch.testing.assert_close(rotated[..., :6], torch.cat((turned.real, turned.imag), -1))
        assert torch.equal(rotated[..., 6:], x[..., 6:])


def test_swiglu_is_silu_of_the_first_half_times_the_second():
    gate_up = random(5, 14)
    gate, up = gate_up[:, :7], gate_up[:, 7:]
    torch.testing.assert_close(swiglu_reference(gate_up), gate / (1 + torch.exp(-gate)) * up)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_equals_torchs_with_repeated_heads(causal):
    q, k, v = random(2, 9, 6, 8), random(2, 9, 2, 8), random(2, 9, 2, 8)
    keys, values = (x.transpose(1, 2).repeat_interleave(3, 1) for x in (k, v))
    expected = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, is_causal=causal, scale=0.2)
    torch.testing.assert_close(attention_reference(q, k, v, causal, 0.2), expected.transpose(1, 2))


def test_packed_attention_of_equal_lengths_is_dense_attention():
    q, k, v = random(3, 5, 4, 8), random(3, 5, 2, 8), random(3, 5, 2, 8)
    bounds = torch.arange(0, 16, 5, dtype=torch.int32)
    packed = packed_attention_reference(*(x.flatten(0, 1) for x in (q, k, v)), bounds, 5, True, 0.3)
    torch.testing.assert_close(packed.view_as(q), attention_reference(q, k, v, True, 0.3))


def test_linear_cross_entropy_equals_torchs():
    hidden, weight = random(6, 8), random(30, 8)
    labels = torch.tensor([0, 29, -100, 3, 7, 7])
    expected = F.cross_entropy(F.linear(hidden, weight), labels, reduction="none")
    torch.testing.assert_close(linear_cross_entropy_reference(hidden, weight, labels, HeadSettings()), expected)


def test_linear_cross_entropy_leaves_padding_rows_out():
    hidden, weight, labels = random(6, 8), random(30, 8), torch.arange(6)
    padded = linear_cross_entropy_reference(hidden, weight, labels, HeadSettings(valid_vocab=20))
    cut = linear_cross_entropy_reference(hidden, weight[:20], labels, HeadSettings())
    assert torch.equal(padded, cut)
