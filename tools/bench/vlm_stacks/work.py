"""The work that every stack does: one vision-language model, packed samples of the kept mix of pictures and lengths."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.data.packing import SecondBudget, best_fit
from loong_core.data.shuffle import permutation
from loong_vlm.data.arrangement import arrange
from loong_vlm.data.batch import Pictures, VisionBatch
from loong_vlm.data.pixels.native_resolution import NativeResolution
from loong_vlm.families.registry import find_vision_family, named_vision_config
from loong_vlm.parts import ModelParts
from tools.bench.mixes.pictures import PictureSample, draw
from tools.bench.vlm_balance import QWEN3_VL

QWEN2_5_VL = replace(QWEN3_VL, patch=14, min_pixels=3_136, max_pixels=12_845_056)
TINY_TEXT = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 96, "vocab_size": 512}  # fmt: skip
TINY_IDS = {"image_token_id": 500, "video_token_id": 501, "vision_start_token_id": 502, "vision_end_token_id": 503}
DISTINCT = 2
"""Steps of which data are made and held; later steps see them again."""


@dataclass(frozen=True)
class Model:
    """A named size, what is made smaller of it, and how it reads images."""

    named: str
    changes: dict[str, Any]
    processor: NativeResolution


MODELS = {
    "qwen3-vl-30b-a3b-l8": Model("qwen3-vl-30b-a3b", {"text_config": {"num_hidden_layers": 8}}, QWEN3_VL),
    "qwen2.5-vl-7b-l8": Model("qwen2.5-vl-7b", {"text_config": {"num_hidden_layers": 8}}, QWEN2_5_VL),
    "tiny-qwen3-vl": Model(
        "qwen3-vl-30b-a3b",
        TINY_IDS
        | {
            "text_config": TINY_TEXT
            | {
                "head_dim": 16,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "rope_theta": 1e4,
                "rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True},
            },
            "vision_config": {"depth": 3, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64,
                              "out_hidden_size": 64, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
        },
        replace(QWEN3_VL, min_pixels=1024, max_pixels=16_384),
    ),
    "tiny-qwen2.5-vl": Model(
        "qwen2.5-vl-7b",
        TINY_IDS
        | {
            "text_config": TINY_TEXT
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}},
            "vision_config": {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64,
                              "out_hidden_size": 64, "fullatt_block_indexes": [1]},
        },
        replace(QWEN2_5_VL, min_pixels=784, max_pixels=12_544),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What one step is: some packed sequences with their images, forward, backward, clipping and AdamW.

    Attributes:
        model: a key of `MODELS`.
        sequence: most tokens of a sequence.
        microbatches: sequences of a step, each a microbatch.
        device: `cuda` or `cpu`.
    """

    model: str
    sequence: int
    microbatches: int
    device: str

    @cached_property
    def hf_config(self) -> dict[str, Any]:
        """The model as a Hugging Face `config.json`."""
        shape = MODELS[self.model]
        hf = copy.deepcopy(dict(named_vision_config(shape.named)))
        for key, value in shape.changes.items():
            hf[key] = hf[key] | value if isinstance(value, dict) else value
        return hf

    @cached_property
    def parts(self) -> ModelParts:
        """The model's parts."""
        return find_vision_family(self.hf_config).parts(self.hf_config)

    @cached_property
    def packed(self) -> list[list[PictureSample]]:
        """Samples of each sequence of all distinct steps."""
        wanted = DISTINCT * self.microbatches
        scale = max(1, 32_768 // self.sequence)
        drawn = draw(MODELS[self.model].processor, 48 * wanted, seed=0)
        samples = [replace(each, text_tokens=max(each.text_tokens // scale, 2)) for each in drawn]
        samples = [each for each in samples if each.places(2) <= self.sequence]
        budget = SecondBudget([each.patches for each in samples], 4 * self.sequence)
        sequences = best_fit([each.places(2) for each in samples], self.sequence, budget)
        order = permutation(len(sequences), 0)[:wanted].tolist()
        if len(order) < wanted:
            raise ValueError(f"{len(samples)} samples fill {len(order)} sequences of {self.sequence}, not {wanted}")
        return [[samples[number] for number in sequences[place]] for place in order]

    def batches(self, step: int) -> list[VisionBatch]:
        """The step's microbatches on the host, the same for every stack; patches and words are random."""
        first = step % DISTINCT * self.microbatches
        return self.made[first : first + self.microbatches]

    @cached_property
    def made(self) -> list[VisionBatch]:
        """The microbatches of all distinct steps, so that no step waits for their making."""
        return [self._batch(number) for number in range(DISTINCT * self.microbatches)]

    def _batch(self, number: int) -> VisionBatch:
        samples, hf = self.packed[number], self.hf_config
        generator = torch.Generator().manual_seed(number)
        words = min(hf["image_token_id"], 150_000)
        tokens: list[Tensor] = []
        for sample in samples:
            for frames, rows, columns in sample.grids:
                shown = torch.full((frames * rows * columns // 4,), hf["image_token_id"])
                marks = [torch.tensor([hf[f"vision_{end}_token_id"]]) for end in ("start", "end")]
                tokens += [marks[0], shown, marks[1]]
            tokens.append(torch.randint(words, (sample.text_tokens,), generator=generator))
        ids = torch.cat(tokens)
        lengths = [sample.places(2) for sample in samples]
        labels = torch.roll(ids, -1)
        labels[torch.tensor(lengths).cumsum(0) - 1] = IGNORED_LABEL
        labels[labels >= words] = IGNORED_LABEL
        grids = [grid for sample in samples for grid in sample.grids]
        pictures = Pictures.none(self.parts.tower.patch_dim)
        if grids:
            grid_thw = torch.tensor(grids)
            patches = torch.randn(int(grid_thw.prod(1).sum()), self.parts.tower.patch_dim, generator=generator)
            pictures = Pictures(patches, grid_thw, ("image",) * len(grids))
        return arrange(PackedBatch.from_lengths(ids, labels, lengths), pictures, self.parts)

    def tokens(self, step: int) -> int:
        """Tokens of a step, placeholders of images among them."""
        return sum(batch.tokens.shape[0] for batch in self.batches(step))

    def flops(self, step: int) -> float:
        """Model operations of a step: attention within samples, causal; tower and projector forward and backward."""
        config, total = self.parts.language.config, 0.0
        attention = config.attention
        for batch in self.batches(step):
            lengths = [stop - start for start, stop in pairwise(batch.text.cu_seqlens.tolist())]
            width = config.num_layers * attention.num_heads * attention.head_dim
            total += 6.0 * config.matmul_parameters() * sum(lengths) + 6.0 * width * sum(each**2 for each in lengths)
            total += 3.0 * sum(self.parts.image_flops(tuple(grid)) for grid in batch.pictures.grid_thw.tolist())
        return total
