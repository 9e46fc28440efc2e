"""Shrunken policies with random weights, and batches for them."""

from __future__ import annotations

from dataclasses import replace

import torch
from named_random import random_weight
from pi_case import ACTION_DIM, CAMERAS, CHUNK, IMAGE, LENGTH, MAX_DIM, SIZES, STATE_DIM, STEPS, pi_inputs
from torch.nn import functional as F

from loong_core.parallel.context import ParallelContext
from loong_vla.families.pi.batch import PiBatch
from loong_vla.families.pi.config import PiConfig, PiSizes
from loong_vla.families.pi.model import PiPolicy
from loong_vla.families.pi.weights import TABLE, pi_weight_map

ALONE = ParallelContext.single()


def pi_config(kind: str) -> PiConfig:
    """The policy that the oracle ran."""
    return PiConfig(
        kind=kind,  # type: ignore[arg-type]
        cameras=CAMERAS,
        state_dim=STATE_DIM,
        action_dim=ACTION_DIM,
        sizes=PiSizes.read(SIZES),
        image_size=IMAGE,
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        max_state_dim=MAX_DIM,
        max_action_dim=MAX_DIM,
        num_inference_steps=STEPS,
        tokenizer_max_length=LENGTH,
    )


def pi_policy(kind: str) -> PiPolicy:
    """The oracle's policy in our form, float64, its weights drawn by lerobot's names."""
    config = pi_config(kind)
    policy = PiPolicy(config).double()
    with torch.no_grad():
        for parameter, placement in pi_weight_map(config, table=TABLE).placements(policy, ALONE):
            drawn = [random_weight(piece.name, piece.global_shape) for piece in placement.pieces]
            parameter.copy_(placement.to_local(drawn))
    return policy


def pi_batch(kind: str) -> PiBatch:
    """What the oracle was shown, without the camera that is not there."""
    given = pi_inputs()
    images = torch.stack([given[camera] for camera in CAMERAS[:2]], dim=1)
    return PiBatch(
        images=images * 2 - 1,
        tokens=given["tokens"],
        token_mask=given["token_mask"],
        actions=F.pad(given["actions"], (0, MAX_DIM - ACTION_DIM)),
        noise=given["noise"],
        time=given["time"],
        trained=F.pad(torch.ones_like(given["actions"], dtype=torch.bool), (0, MAX_DIM - ACTION_DIM)),
        state=F.pad(given["state"], (0, MAX_DIM - STATE_DIM)) if kind == "pi0" else None,
    )


def one_sample(batch: PiBatch, number: int) -> PiBatch:
    """One sample of a batch, its prompt without padding."""
    assert batch.token_mask is not None
    length = int(batch.token_mask[number].sum())
    rows = slice(number, number + 1)
    return replace(
        batch,
        images=batch.images[rows],
        tokens=batch.tokens[rows, :length],
        token_mask=None,
        actions=batch.actions[rows],
        noise=batch.noise[rows],
        time=batch.time[rows],
        trained=batch.trained[rows],
        state=None if batch.state is None else batch.state[rows],
    )
