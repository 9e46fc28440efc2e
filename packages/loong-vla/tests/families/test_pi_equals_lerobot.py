"""Pi0 and Pi0.5 against lerobot's policies, whose results `oracle/write_pi_golden.py` wrote down."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from pi_case import ACTION_DIM
from safetensors.torch import load_file
from vla_toys import ALONE, pi_batch, pi_config, pi_policy

from loong_vla.families.pi.weights import TABLE, idle_tensors, pi_weight_map

KINDS = ["pi0", "pi05"]


@cache
def golden(kind: str) -> dict[str, torch.Tensor]:
    return load_file(Path(__file__).parent / "golden" / f"lerobot_{kind}.safetensors")


def loss_of(kind: str, policy: torch.nn.Module) -> torch.Tensor:
    batch = pi_batch(kind)
    error = policy(batch) - (batch.noise - batch.actions)
    return error[..., :ACTION_DIM].square().mean()


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_every_gradient_are_lerobots(kind: str) -> None:
    policy = pi_policy(kind)
    loss = loss_of(kind, policy)
    loss.backward()
    torch.testing.assert_close(loss, golden(kind)["loss"], rtol=1e-12, atol=0)
    left = {name.removeprefix("gradient/") for name in golden(kind) if name.startswith("gradient/")}
    for parameter, placement in pi_weight_map(pi_config(kind), table=TABLE).placements(policy, ALONE):
        for piece, own in zip(placement.pieces, placement.from_local(parameter.grad), strict=True):
            expected = golden(kind)[f"gradient/{piece.name}"].double()
            assert expected.any(), piece.name
            atol = 1e-6 * float(expected.abs().max()) + 1e-12  # the bias of keys has no effect: its gradient is noise
            torch.testing.assert_close(
                own, expected, rtol=1e-6, atol=atol, msg=lambda text, n=piece.name: f"{n}: {text}"
            )
            left.discard(piece.name)
    # What is left of lerobot's gradients belongs to weights that no action depends on.
    assert left <= set(idle_tensors(pi_config(kind)))
    assert all(not golden(kind)[f"gradient/{name}"].any() for name in left)


@pytest.mark.parametrize("kind", KINDS)
def test_actions_sampled_from_the_same_noise_are_lerobots(kind: str) -> None:
    policy = pi_policy(kind).eval()
    actions = policy.sample(pi_batch(kind))[..., :ACTION_DIM]
    torch.testing.assert_close(actions, golden(kind)["actions"], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_names_of_all_weights_are_lerobots(kind: str) -> None:
    names = set(bytes(golden(kind)["names"]).decode().split("\n"))
    config = pi_config(kind)
    ours = set(pi_weight_map(config).tensors(config.sizes.language.depth)) | set(idle_tensors(config))
    # lerobot holds the text embedding twice; a file needs it once, under the head's name.
    assert ours == names - {f"model.{TABLE}"}
