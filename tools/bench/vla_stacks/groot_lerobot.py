"""lerobot's own GR00T N1.7 and its trainer's step: float32 weights under bfloat16 autocast, the loss told every step.

The backbone is frozen, AdamW and clipping are lerobot's, attention is SDPA, as its defaults have it; its policy offers
neither compilation nor, in its trainer, recomputation. Inputs are on the device as its processors leave them. As for
Pi0.5, its package is entered without what its other policies import; this one also needs diffusers and dm-tree.
"""

from __future__ import annotations

import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from loong_vla.families.groot.policy import prepared
from tools.bench.vla_stacks.groot_work import GrootWork

NOTE = "frozen backbone, all 32 embodiments, float32 weights and AdamW moments under bfloat16 autocast"


def build(work: GrootWork) -> Callable[[int], float]:
    """A training step on the batch of a number, which gives the loss."""
    module = _module()
    from transformers import AutoConfig

    sizes = {key: value for key, value in work.model.items() if key not in ("model_type", "backbone_config")}
    module._cosmos_reason2_qwen3_vl_config = lambda: AutoConfig.for_model(**work.model["backbone_config"])
    with torch.device(work.device):
        model = module.GR00TN17(module.GR00TN17Config(**sizes), load_backbone_weights=False).train()
    for parameter in model.parameters():
        parameter.data = parameter.data.float()
    model.backbone.set_trainable_parameters(tune_llm=False, tune_visual=False)
    trained = [each for each in model.parameters() if each.requires_grad]
    matrices = {id(each) for each in trained if each.ndim > 1}
    groups = [
        {"params": [each for each in trained if id(each) in matrices]},
        {"params": [each for each in trained if id(each) not in matrices], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-5)
    batches = [inputs(work, number) for number in range(4)]

    def step(number: int) -> float:
        with torch.autocast(work.device, torch.bfloat16, enabled=work.device == "cuda"):
            loss = model(dict(batches[number % len(batches)]))["loss"]
        told = loss.item()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return told

    return step


def inputs(work: GrootWork, number: int) -> dict[str, Any]:
    """Our samples in the form in which lerobot's processors give them: padded on the left, pictures as floats."""
    batch = prepared(work.samples(number), work.config)
    lengths = batch.vision.text.cu_seqlens.diff().tolist()
    longest = max(lengths)
    ids = torch.zeros(len(lengths), longest, dtype=torch.int64)
    there = torch.zeros_like(ids)
    for row, own in enumerate(batch.vision.tokens.split(lengths)):
        ids[row, longest - len(own) :] = own
        there[row, longest - len(own) :] = 1
    acted = batch.acted
    assert acted.actions is not None
    assert acted.trained is not None
    found = {
        "input_ids": ids,
        "attention_mask": there,
        "pixel_values": batch.vision.pictures.patches,
        "image_grid_thw": batch.vision.pictures.grid_thw,
        "state": acted.state[:, None],
        "action": acted.actions,
        "action_mask": acted.trained.float(),
        "embodiment_id": torch.full((work.batch,), work.config.ids["new_embodiment"]),
    }
    return {name: values.to(work.device) for name, values in found.items()}


def _module() -> Any:
    """Lerobot's module of the model."""
    import lerobot

    package = types.ModuleType("lerobot.policies")
    package.__path__ = [str(pathlib.Path(lerobot.__file__).parent / "policies")]
    sys.modules["lerobot.policies"] = package
    own = types.ModuleType("lerobot.policies.groot")
    own.__path__ = [str(pathlib.Path(lerobot.__file__).parent / "policies" / "groot")]
    sys.modules["lerobot.policies.groot"] = own
    from lerobot.policies.groot import groot_n1_7

    return groot_n1_7
