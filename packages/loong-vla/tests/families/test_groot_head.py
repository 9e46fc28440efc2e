"""GR00T's action head against lerobot's (N1.7), and against a plain form of N1.6 written from its description."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from groot_case import CONFIG, groot_inputs
from groot_plain import plain_n16
from named_random import random_weight
from safetensors.torch import load_file
from torch import Tensor
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
