"""Write what lerobot's Pi policies compute on the shrunken case: `python write_pi_golden.py FOLDER`.

Runs in an environment with `lerobot[dataset,pi]==0.6.1` (`nox -s oracle-vla` makes one). Weights are drawn by name, so
the files hold results only: the loss, every parameter's gradient, and sampled actions.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.pi0.configuration_pi0 import PI0Config
from lerobot.policies.pi05.configuration_pi05 import PI05Config
from lerobot_sizes import modeling, use_float64, use_sizes
from named_random import random_weight
from pi_case import ACTION_DIM, CAMERAS, CHUNK, IMAGE, LENGTH, MAX_DIM, SIZES, STATE_DIM, STEPS, pi_inputs
from safetensors.torch import save_file

POLICIES = {"pi0": (PI0Config, "PI0Policy"), "pi05": (PI05Config, "PI05Policy")}


def make_policy(kind: str) -> torch.nn.Module:
    """lerobot's policy of the case's sizes with weights drawn by name, in float64."""
    config_class, policy_class = POLICIES[kind]
    use_sizes(kind, SIZES)
    use_float64(kind)
    inputs = {name: PolicyFeature(FeatureType.VISUAL, (3, IMAGE, IMAGE)) for name in CAMERAS}
    inputs["observation.state"] = PolicyFeature(FeatureType.STATE, (STATE_DIM,))
    config = config_class(
        input_features=inputs,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION_DIM,))},
        device="cpu",
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        max_state_dim=MAX_DIM,
        max_action_dim=MAX_DIM,
        num_inference_steps=STEPS,
        image_resolution=(IMAGE, IMAGE),
        tokenizer_max_length=LENGTH,
    )
    policy = getattr(modeling(kind), policy_class)(config).double()
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            parameter.copy_(random_weight(name, tuple(parameter.shape)))
    return policy


def golden(kind: str) -> dict[str, torch.Tensor]:
    """Loss, gradients and sampled actions."""
    policy = make_policy(kind)
    given = pi_inputs()
    batch = {
        **{name: given[name] for name in CAMERAS[:2]},
        "observation.language.tokens": given["tokens"],
        "observation.language.attention_mask": given["token_mask"],
        "observation.state": given["state"],
        "action": given["actions"],
    }
    policy.model.sample_noise = lambda shape, device: given["noise"]
    policy.model.sample_time = lambda size, device: given["time"]
    loss, _ = policy.forward(batch)
    loss.backward()
    found = {"loss": loss.detach(), "actions": policy.predict_action_chunk(batch)}
    for name, parameter in policy.named_parameters():
        if parameter.grad is not None:
            found[f"gradient/{name}"] = parameter.grad.float()
    found["names"] = torch.frombuffer(bytearray("\n".join(policy.state_dict()).encode()), dtype=torch.uint8)
    return {name: tensor.contiguous() for name, tensor in found.items()}


if __name__ == "__main__":
    for kind in POLICIES:
        save_file(golden(kind), Path(sys.argv[1]) / f"lerobot_{kind}.safetensors")
