"""GR00T's action head against lerobot's (N1.7), and against a plain form of N1.6 written from its description."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from groot_case import CONFIG, groot_inputs
from named_random import random_weight
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from vla_toys import ALONE

from loong_core.errors import ConfigError
from loong_vla.families.groot.config import GrootHeadConfig, read_head_config
from loong_vla.families.groot.head import Acted, GrootHead, Seen, groot_loss
from loong_vla.families.groot.tokens import GatheredTokens
from loong_vla.families.groot.weights import groot_head_map


@cache
def golden() -> dict[str, Tensor]:
    return load_file(Path(__file__).parent / "golden" / "lerobot_groot_n1_7_head.safetensors")


def head_config(active: tuple[int, ...] | None = None) -> GrootHeadConfig:
    return read_head_config("config.json", CONFIG, active)


def make_head(config: GrootHeadConfig) -> GrootHead:
    head = GrootHead(config).double().eval()
    with torch.no_grad():
        for parameter, placement in groot_head_map(config, prefix="").placements(head, ALONE):
            drawn = [random_weight(piece.name, piece.global_shape)[piece.slices] for piece in placement.pieces]
            parameter.copy_(placement.to_local(drawn))
    return head


def case(config: GrootHeadConfig) -> tuple[Seen, Acted]:
    given = groot_inputs()
    images, there = given["image_mask"], given["attention_mask"]
    seen = Seen(given["features"], GatheredTokens.of(images & there), GatheredTokens.of(~images & there))
    places = torch.tensor([config.active.index(int(each)) for each in given["embodiment"]])
    acted = Acted(given["state"][:, 0], places, given["noise"], given["actions"], given["time"], given["trained"])
    return seen, acted


def test_loss_and_every_gradient_are_lerobots() -> None:
    config = head_config()
    head = make_head(config)
    terms = groot_loss(head, *case(config))
    loss = terms.loss_sum / terms.tokens
    loss.backward()
    torch.testing.assert_close(loss, golden()["loss"], rtol=1e-7, atol=0)
    left = {name for name in golden() if name.startswith("gradient/")}
    for parameter, placement in groot_head_map(config, prefix="").placements(head, ALONE):
        for piece, own in zip(placement.pieces, placement.from_local(parameter.grad), strict=True):
            expected = golden()[f"gradient/{piece.name}"].double()[piece.slices]
            atol = 2e-6 * float(golden()[f"gradient/{piece.name}"].abs().max()) + 1e-12
            torch.testing.assert_close(own, expected, rtol=1e-5, atol=atol, msg=lambda t, n=piece.name: f"{n}: {t}")
            left.discard(f"gradient/{piece.name}")
    assert left == set()


def test_actions_sampled_from_the_same_noise_are_lerobots() -> None:
    config = head_config()
    actions = make_head(config).sample(*case(config))
    torch.testing.assert_close(actions, golden()["actions"], rtol=1e-8, atol=1e-9)


def test_the_names_of_all_weights_are_lerobots() -> None:
    names = set(bytes(golden()["names"]).decode().split("\n"))
    config = head_config()
    assert set(groot_head_map(config, prefix="").tensors(config.num_layers)) == names


def test_holding_active_embodiments_only_changes_neither_loss_nor_their_gradients() -> None:
    whole, active = head_config(), head_config((2, 5))
    results = []
    for config in (whole, active):
        head = make_head(config)
        terms = groot_loss(head, *case(config))
        terms.loss_sum.backward()
        results.append((terms.loss_sum, dict(head.named_parameters())))
    (loss, all_banks), (active_loss, banks) = results
    torch.testing.assert_close(active_loss, loss, rtol=1e-12, atol=0)
    for name, parameter in banks.items():
        expected = all_banks[name].grad
        if parameter.shape != expected.shape:
            others = [each for each in range(6) if each not in (2, 5)]
            assert not expected[others].any()
            expected = expected[[2, 5]]
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-10, atol=1e-13)


def test_one_embodiment_needs_no_choice_of_weights() -> None:
    config = head_config((2,))
    seen, acted = case(head_config())
    only = replace(acted, embodiment=torch.zeros(3, dtype=torch.int64))
    expected = make_head(head_config())(seen, replace(acted, embodiment=torch.full((3,), 2)))
    torch.testing.assert_close(make_head(config)(seen, only), expected, rtol=1e-12, atol=1e-13)


def plain_n16(head: GrootHead, given: dict[str, Tensor]) -> Tensor:
    """N1.6's velocity, from its description: LayerNorm of what was seen, masks over all keys, banks by sample."""
    weights, config = dict(head.named_parameters()), head.config

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def bank(name: str, x: Tensor) -> Tensor:
        e = given["embodiment"]
        return torch.einsum("bti,bio->bto", x, weights[f"{name}.weight"][e]) + weights[f"{name}.bias"][e][:, None]

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (config.num_heads, config.head_dim)).transpose(1, 2)

    seen = F.layer_norm(given["features"], (config.vl_width,), weights["vl_norm.weight"], weights["vl_norm.bias"])
    time = given["time"][:, None, None]
    whole = (given["time"] * 1000).long().float()
    noisy = (1 - time) * given["noise"] + time * given["actions"]
    half = torch.arange(config.width // 2, dtype=torch.float32)
    angles = whole[:, None] * torch.exp(-half * (torch.log(torch.tensor(10000.0)) / (config.width // 2)))
    told = torch.cat((angles.sin(), angles.cos()), -1).double()[:, None].expand(-1, noisy.shape[1], -1)
    x = bank("action_encoder.layer2", torch.cat((bank("action_encoder.layer1", noisy), told), -1))
    x = bank("action_encoder.layer3", x * x.sigmoid()) + weights["positions.weight"][: noisy.shape[1]]
    state = bank("state_encoder.layer2", bank("state_encoder.layer1", given["state"]).relu())
    x = torch.cat((state, x), 1)
    quarter = torch.arange(128, dtype=torch.float32)
    angles = whole[:, None] * torch.exp(-torch.log(torch.tensor(10000.0)).item() * quarter / 127)
    c = linear("time2", F.silu(linear("time1", torch.cat((angles.cos(), angles.sin()), -1).double())))
    for number in range(config.num_layers):
        block = f"layers.{number}"
        scale, shift = linear(f"{block}.modulation", F.silu(c))[:, None].chunk(2, -1)
        normed = F.layer_norm(x, (config.width,), eps=1e-5) * (1 + scale) + shift
        if number % 2:
            q, k, v = linear(f"{block}.qkv", normed).chunk(3, -1)
            mask = torch.ones(x.shape[0], x.shape[1], dtype=torch.bool)
        else:
            reads_text = number % 4 == 0
            kind, blocks = ("text_kv", config.text_blocks) if reads_text else ("image_kv", config.image_blocks)
            k, v = linear(kind, seen).chunk(2 * len(blocks), -1)[2 * blocks.index(number) :][:2]
            q = linear(f"{block}.q", normed)
            mask = given["attention_mask"] & (~given["image_mask"] if reads_text else given["image_mask"])
        scores = heads(q) @ heads(k).transpose(-1, -2) * config.head_dim**-0.5
        attended = scores.masked_fill(~mask[:, None, None], float("-inf")).softmax(-1) @ heads(v)
        x = x + linear(f"{block}.out", attended.transpose(1, 2).flatten(2))
        inner = linear(f"{block}.up", F.layer_norm(x, (config.width,), eps=1e-5))
        x = x + linear(f"{block}.down", F.gelu(inner, approximate="tanh"))
    shift, scale = linear("out_modulation", F.silu(c))[:, None].chunk(2, -1)
    x = linear("out", F.layer_norm(x, (config.width,), eps=1e-6) * (1 + scale) + shift)
    return bank("action_decoder.layer2", bank("action_decoder.layer1", x).relu())[:, 1:]


def test_n16_equals_its_plain_form_in_value_and_gradients() -> None:
    config = replace(head_config(), version="n1.6", vl_layers=0)
    head = make_head(config)
    given = groot_inputs()
    seen, acted = case(config)
    results = []
    for velocity in (head(seen, acted), plain_n16(head, given)):
        gradients = torch.autograd.grad(velocity.square().sum(), list(head.parameters()))
        results.append((velocity.detach(), gradients))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-7, atol=1e-9)
    for first, second in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-8)


def test_an_embodiment_that_the_checkpoint_does_not_have_is_told() -> None:
    with pytest.raises(ConfigError, match=r"embodiment: \[9\] is not known \(the checkpoint has 0 to 5\)"):
        head_config((2, 9))
