"""Write what lerobot's GR00T N1.7 action head computes on the shrunken case: `python write_groot_golden.py FOLDER`.

Runs in an environment with `lerobot[dataset,groot]==0.6.1`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from groot_case import CONFIG, groot_inputs
from lerobot.policies.groot import groot_n1_7 as module
from named_random import random_weight
from safetensors.torch import save_file
from transformers.feature_extraction_utils import BatchFeature


class DrawnTorch(ModuleType):
    """The module torch, whose normal numbers are given."""

    def __init__(self, noise: torch.Tensor) -> None:
        super().__init__("torch")
        self.noise = noise

    def randn(self, *arguments: Any, **choices: Any) -> torch.Tensor:
        return self.noise

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def golden() -> dict[str, torch.Tensor]:
    """Loss, gradients and sampled actions."""
    given = groot_inputs()
    head = module.GR00TN17ActionHead(module.GR00TN17Config(**CONFIG)).double().eval()
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            parameter.copy_(random_weight(name, tuple(parameter.shape)))
    module.torch = DrawnTorch(given["noise"])
    head.sample_time = lambda *_, **__: given["time"]

    def seen() -> BatchFeature:
        return BatchFeature(
            data={
                "backbone_features": given["features"],
                "backbone_attention_mask": given["attention_mask"],
                "image_mask": given["image_mask"],
            }
        )

    acted = BatchFeature(
        data={
            "state": given["state"],
            "action": given["actions"],
            "action_mask": given["trained"],
            "embodiment_id": given["embodiment"],
        }
    )
    loss = head(seen(), acted)["loss"]
    loss.backward()
    found = {"loss": loss.detach()}
    for name, parameter in head.named_parameters():
        if parameter.grad is not None:
            found[f"gradient/{name}"] = parameter.grad.float()
    del acted["action"]
    found["actions"] = head.get_action(seen(), acted)["action_pred"]
    found["names"] = torch.frombuffer(bytearray("\n".join(head.state_dict()).encode()), dtype=torch.uint8)
    return {name: tensor.contiguous() for name, tensor in found.items()}


if __name__ == "__main__":
    save_file(golden(), Path(sys.argv[1]) / "lerobot_groot_n1_7_head.safetensors")
