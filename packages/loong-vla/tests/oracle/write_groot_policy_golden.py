"""Write what lerobot's GR00T N1.7 makes of the shrunken case: `python write_groot_policy_golden.py FOLDER`.

Runs in an environment with `lerobot[dataset,groot]==0.6.1`. lerobot builds its policy from weights of 6 GB; here the
model is made from the case's sizes, and transformers' classes compute in float64 where they say float32. Processors,
policy and backbone are lerobot's own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MethodType
from typing import Any

import torch
from groot_policy_case import (
    ACTION_DIM,
    BACKBONE,
    CAMERAS,
    EMBODIMENTS,
    HEIGHT,
    LONE_TASKS,
    MODEL,
    STATE_DIM,
    TASKS,
    WIDTH,
    recorded,
    statistics,
    write_tokenizer,
)
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.groot import groot_n1_7 as module
from lerobot.policies.groot import processor_groot
from lerobot.policies.groot.configuration_groot import GrootConfig
from lerobot.policies.groot.modeling_groot import GrootPolicy
from named_random import random_weight
from safetensors.torch import save_file
from transformers import AutoConfig
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen
from write_groot_golden import DrawnTorch


def exact_norm(norm: Any, x: torch.Tensor) -> torch.Tensor:
    return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)


def exact_rotation(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    def rotated(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]

    return rotated(q), rotated(k)


def make_model(config: dict[str, Any], backbone: dict[str, Any]) -> torch.nn.Module:
    """lerobot's model of these sizes, its weights uninitialised."""
    module._cosmos_reason2_qwen3_vl_config = lambda: AutoConfig.for_model(**backbone)
    own = {key: value for key, value in config.items() if key != "model_type"}
    return module.GR00TN17(module.GR00TN17Config(**own), load_backbone_weights=False)


def policy_config(**changes: Any) -> GrootConfig:
    """lerobot's configuration of the case."""
    return GrootConfig(
        input_features={camera: PolicyFeature(FeatureType.VISUAL, (3, HEIGHT, WIDTH)) for camera in CAMERAS}
        | {"observation.state": PolicyFeature(FeatureType.STATE, (STATE_DIM,))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION_DIM,))},
        chunk_size=MODEL["action_horizon"],
        n_action_steps=MODEL["action_horizon"],
        max_state_dim=MODEL["max_state_dim"],
        max_action_dim=MODEL["max_action_dim"],
        use_bf16=False,
        device="cpu",
        **changes,
    )


def exact_policy() -> GrootPolicy:
    """The policy in float64, every parameter drawn by its name, all of them trained."""
    GrootPolicy._create_groot_model = lambda self: make_model(MODEL, BACKBONE)  # type: ignore[method-assign]
    policy = GrootPolicy(policy_config(tune_llm=True, tune_visual=True)).double().eval()
    for each in policy.modules():
        if type(each).__name__.endswith("RMSNorm"):
            each.forward = MethodType(exact_norm, each)
    qwen.apply_rotary_pos_emb_vision = exact_rotation
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            parameter.requires_grad_(True)
            parameter.copy_(random_weight(name, tuple(parameter.shape)))
    return policy


def processors(folder: Path) -> Any:
    """lerobot's pipelines, as it makes them for a fresh robot, over the case's tokenizer and statistics."""
    write_tokenizer(folder)
    stats = {
        feature: {"min": torch.tensor(each["q01"]), "max": torch.tensor(each["q99"])}
        for feature, each in statistics().items()
    }
    before, after = processor_groot.make_groot_pre_post_processors(policy_config(), dataset_stats=stats)
    for step in before.steps:
        if isinstance(step, processor_groot.GrootN17VLMEncodeStep):
            step.model_name = str(folder)
            step.image_crop_size, step.image_target_size = MODEL["image_crop_size"], MODEL["image_target_size"]
    return before, after


def observed(given: dict[str, torch.Tensor], tasks: tuple[str, ...], rows: slice) -> dict[str, Any]:
    """Samples in the form in which lerobot's datasets give them."""
    pictures = {camera: given[camera][rows].permute(0, 3, 1, 2).float() / 255 for camera in CAMERAS}
    return {**pictures, "observation.state": given["state"][rows], "task": list(tasks)}


def golden() -> dict[str, torch.Tensor]:
    """Inputs of the model, loss, gradients, sampled actions before and after the processor."""
    given, policy = recorded(), exact_policy()
    found: dict[str, torch.Tensor] = {}
    with TemporaryDirectory() as temporary:
        before, after = processors(Path(temporary))
        batch = observed(given, TASKS, slice(None))
        batch |= {"action": given["actions"], "action_is_pad": ~given["inside"]}
        inputs = before(batch)
        inputs["embodiment_id"] = torch.tensor(EMBODIMENTS)
        for name in ("input_ids", "pixel_values", "image_grid_thw", "state", "action", "action_mask"):
            found[f"input/{name}"] = inputs[name].clone()
        module.torch = DrawnTorch(given["noise"])
        policy._groot_model.action_head.sample_time = lambda *_, **__: given["time"]
        loss, _ = policy.forward(inputs)
        loss.backward()
        found["loss"] = loss.detach()
        for name, parameter in policy.named_parameters():
            if parameter.grad is not None:
                found[f"gradient/{name}"] = parameter.grad.float()
        actions = policy.predict_action_chunk(inputs)
        found["actions"], found["restored"] = actions, after(actions.float())
        for number, task in enumerate(LONE_TASKS):
            own = before(observed(given, (task,), slice(number, number + 1)))
            own["embodiment_id"] = torch.tensor(EMBODIMENTS[number : number + 1])
            module.torch = DrawnTorch(given["noise"][number : number + 1])
            found[f"alone/{number}"] = policy.predict_action_chunk(own)
    found["names"] = torch.frombuffer(bytearray("\n".join(policy.state_dict()).encode()), dtype=torch.uint8)
    return {name: tensor.contiguous() for name, tensor in found.items()}


if __name__ == "__main__":
    save_file(golden(), Path(sys.argv[1]) / "lerobot_groot_n1_7_policy.safetensors")
