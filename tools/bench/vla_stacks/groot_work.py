"""The work that both stacks do on GR00T N1.7: one policy, its backbone frozen, batches of random samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from loong_vla.data.samples import RobotSample
from loong_vla.families.groot.batch import GrootBatch, GrootCollator
from loong_vla.families.groot.policy_config import GrootConfig, published

CAMERAS = ("observation.images.first", "observation.images.second")
STATE, ACTION, SIDE = 8, 7, 256
FROZEN = ("_groot_model.backbone.*",)
"""As lerobot's recipe has it: neither the language model nor the tower is trained."""


def tiny() -> dict[str, Any]:
    """A GR00T that a CPU runs."""
    model = published("n1.7")
    backbone = model["backbone_config"]
    text = backbone["text_config"] | {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 151936 // 64,
        "rope_scaling": backbone["text_config"]["rope_scaling"] | {"mrope_section": [4, 2, 2]},
    }  # fmt: skip
    vision = backbone["vision_config"] | {
        "depth": 4, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 64,
        "deepstack_visual_indexes": [0, 1, 2], "num_position_embeddings": 256,
    }  # fmt: skip
    marks = {"image_token_id": 2000, "video_token_id": 2001, "vision_start_token_id": 2002, "vision_end_token_id": 2003}
    return model | {
        "backbone_config": backbone | marks | {"text_config": text, "vision_config": vision},
        "backbone_embedding_dim": 64, "select_layer": 4, "hidden_size": 32, "input_embedding_dim": 32,
        "diffusion_model_cfg": model["diffusion_model_cfg"]
        | {"num_layers": 4, "num_attention_heads": 2, "attention_head_dim": 16, "output_dim": 32},
        "vl_self_attention_cfg": model["vl_self_attention_cfg"]
        | {"num_layers": 1, "num_attention_heads": 4, "attention_head_dim": 16},
    }  # fmt: skip


def fewer_layers(model: dict[str, Any], layers: int | None) -> dict[str, Any]:
    """The same with fewer layers in the language model and twice as many in the head."""
    if layers is None:
        return model
    dit = model["diffusion_model_cfg"] | {"num_layers": 2 * layers}
    return model | {"select_layer": layers, "diffusion_model_cfg": dit}


@dataclass(frozen=True)
class GrootWork:
    """What is measured.

    Attributes:
        model: of the policy, in the form of `sizes.json`.
        batch: samples of a step.
        prompt: shortest and longest task, in tokens.
        device: `cuda` or `cpu`.
        compiled: whether our layers are compiled; lerobot's policy has no such choice.
    """

    model: dict[str, Any]
    batch: int
    prompt: tuple[int, int]
    device: str
    compiled: bool

    @cached_property
    def config(self) -> GrootConfig:
        """The policy, for one robot."""
        whole = GrootConfig(version="n1.7", cameras=CAMERAS, state_dim=STATE, action_dim=ACTION, model=self.model)
        return whole.for_embodiments(["new_embodiment"])

    @property
    def flops(self) -> float:
        """Of a step, as our form computes it; a stack that does more has no credit for it."""
        own = self.config.flops_per_sample(len(CAMERAS), sum(self.prompt) // 2, backbone_trained=False)
        return self.batch * own

    @property
    def layers(self) -> int:
        """Kept of the language model."""
        return int(self.model["select_layer"])

    def samples(self, step: int) -> GrootBatch:
        """A step's samples on the host, pictures as bytes."""
        random = np.random.default_rng(step)
        taken = [
            RobotSample(
                {camera: random.integers(0, 256, (SIDE, SIDE, 3), np.uint8) for camera in CAMERAS},
                random.standard_normal(STATE).astype(np.float32).clip(-1, 1),
                random.standard_normal((self.config.chunk_size, ACTION)).astype(np.float32).clip(-1, 1),
                np.ones(self.config.chunk_size, bool),
                "",
                "new_embodiment",
                step * self.batch + row,
            )
            for row in range(self.batch)
        ]
        words = random.integers(self.prompt[0], self.prompt[1] + 1, self.batch).tolist()
        return GrootCollator(self.config, Words(self.config, words, random), seed=0)(taken)  # type: ignore[arg-type]


class Words:
    """In the place of a tokenizer: prompts of so many random tokens behind the marks of each picture."""

    chat_template = None

    def __init__(self, config: GrootConfig, lengths: list[int], random: np.random.Generator) -> None:
        marks = config.model["backbone_config"]
        picture = [marks[key] for key in ("vision_start_token_id", "image_token_id", "vision_end_token_id")]
        most = min(marks[key] for key in ("image_token_id", "vision_start_token_id"))
        around = 3 * len(CAMERAS)
        self._ids = [
            picture * len(CAMERAS) + random.integers(1, most, max(1, length - around)).tolist() for length in lengths
        ]

    def __call__(self, texts: list[str]) -> dict[str, list[list[int]]]:
        """The tokens, whatever the texts."""
        return {"input_ids": self._ids[: len(texts)]}


def work_of(
    size: str, layers: int | None, batch: int, prompt: tuple[int, int], device: str, compiled: bool
) -> GrootWork:
    """The work of a size, `full` or `tiny`."""
    model = tiny() if size == "tiny" else published("n1.7")
    return GrootWork(fewer_layers(model, layers), batch, prompt, device, compiled)
