"""A policy small enough to be trained on a CPU within minutes: shaped as Pi0.5, with a tokenizer of its own."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from loong_vla.families.pi.config import GemmaSize, PiConfig, PiSizes, VisionSize
from loong_vla.lerobot_folder.sizes_file import write_sizes
from loong_vla.simulator.touch_world import CAMERA, COLOURS, SIZE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SIZES = PiSizes(
    language=GemmaSize(width=96, depth=3, mlp=192, heads=8, kv_heads=1, head_dim=16),
    expert=GemmaSize(width=64, depth=3, mlp=128, heads=8, kv_heads=1, head_dim=16),
    vision=VisionSize(hidden_size=64, intermediate_size=128, num_layers=2, num_heads=4, patch_size=8),
    vocab_size=288,
)

_WORDS = ("Task", "State", "Action", ":", ",", ";", "touch", "the", "ball", *COLOURS)


def word_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the words of the world's tasks, and the numbers that states are told by."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<bos>", "<unk>", *_WORDS, *(str(number) for number in range(-1, 256))]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"-?\d+|\w+|[:,;]"), "removed", invert=True)
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", pad_token="<pad>", unk_token="<unk>", padding_side="right"
    )


def write_small_policy(folder: Path) -> None:
    """Write the policy's folder, without weights."""
    config = PiConfig(
        kind="pi05",
        cameras=(CAMERA,),
        state_dim=2,
        action_dim=2,
        sizes=SIZES,
        image_size=SIZE,
        chunk_size=6,
        n_action_steps=2,
        max_state_dim=2,
        max_action_dim=2,
        num_inference_steps=5,
        tokenizer_max_length=24,
    )
    folder.mkdir(parents=True, exist_ok=True)
    word_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config.to_json(), indent=2) + "\n", encoding="utf-8")
    write_sizes(folder, asdict(SIZES))
