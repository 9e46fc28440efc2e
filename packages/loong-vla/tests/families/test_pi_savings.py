"""What Pi policies leave out of the computation changes neither actions nor gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from pi_case import ACTION_DIM
from torch import Tensor
from torch.nn import functional as F
from vla_toys import one_sample, pi_batch, pi_policy

from loong_vla.families.pi import model as pi_model
from loong_vla.families.pi.batch import PiBatch
from loong_vla.families.pi.model import PiPolicy

KINDS = ["pi0", "pi05"]


def velocity_and_gradients(policy: PiPolicy, batch: PiBatch) -> tuple[Tensor, list[Tensor]]:
    velocity = policy(batch)
    gradients = torch.autograd.grad(velocity[..., :ACTION_DIM].square().sum(), list(policy.parameters()))
    return velocity.detach(), list(gradients)


def assert_same(policy: PiPolicy, first: PiBatch, second: PiBatch) -> None:
    for ours, theirs in zip(*(velocity_and_gradients(policy, each) for each in (first, second)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(policy.sample(first), policy.sample(second), rtol=1e-10, atol=1e-12)


def masked_attention(lone: int, prefix: int) -> Callable[..., Tensor]:
    """The slow form: one attention of all tokens over all tokens under a mask of every pair."""

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        queries, keys = q.shape[1], k.shape[1]
        block = torch.arange(keys) >= prefix
        block = block.long() + (torch.arange(keys) >= prefix + lone)  # 0 prefix, 1 state, 2 actions
        allowed = block[None, :] <= block[keys - queries :, None]
        if mask is not None:
            allowed = allowed & mask[:, None, None, :]
        repeats = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(repeats, 2), v.repeat_interleave(repeats, 2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v)

    return attend


@pytest.mark.parametrize("kind", KINDS)
def test_attention_in_two_calls_is_attention_under_a_mask(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, batch = pi_policy(kind), pi_batch(kind)
    ours = velocity_and_gradients(policy, batch)
    prefix = batch.images.shape[1] * policy.config.image_tokens + batch.tokens.shape[1]
    slow = masked_attention(1 if kind == "pi0" else 0, prefix)

    def whole_suffix(self: pi_model.PiLayer, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return slow(q, k, v, None if mask is None else F.pad(mask, (0, q.shape[1]), value=True))

    monkeypatch.setattr(pi_model, "attend", slow)
    monkeypatch.setattr(pi_model.PiLayer, "_attend", whole_suffix)
    for first, second in zip(ours, velocity_and_gradients(policy, batch), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_camera_that_no_sample_has_may_be_left_out(kind: str) -> None:
    policy, batch = pi_policy(kind), pi_batch(kind)
    absent = torch.full_like(batch.images[:, :1], -1.0)
    mask = torch.tensor([[True, True, False]]).expand(batch.images.shape[0], 3)
    masked = replace(batch, images=torch.cat((batch.images, absent), 1), image_mask=mask)
    assert_same(policy, batch, masked)


@pytest.mark.parametrize("kind", KINDS)
def test_the_length_that_prompts_are_padded_to_does_not_matter(kind: str) -> None:
    policy, batch = pi_policy(kind), pi_batch(kind)
    assert batch.token_mask is not None
    longer = replace(batch, tokens=F.pad(batch.tokens, (0, 7)), token_mask=F.pad(batch.token_mask, (0, 7)))
    assert_same(policy, batch, longer)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_alone_needs_no_mask_and_computes_what_it_does_among_others(kind: str) -> None:
    policy, batch = pi_policy(kind), pi_batch(kind)
    together = policy(batch)
    for number in range(batch.tokens.shape[0]):
        alone = policy(one_sample(batch, number))
        torch.testing.assert_close(alone[0], together[number], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_that_is_kept_has_a_gradient(kind: str) -> None:
    policy = pi_policy(kind)
    policy(pi_batch(kind))[..., :ACTION_DIM].square().sum().backward()
    idle = [name for name, each in policy.named_parameters() if each.grad is None or not each.grad.any()]
    assert idle == []
