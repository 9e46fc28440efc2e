"""The quickstart: a small tower, projector and language model, put together and taught to read handwritten digits.

It is an ordinary run: its run file is `run.yaml` in the output folder, its data lie beside it. What it learnt from the
pictures is told apart from what the questions alone would have taught by showing it blank pictures, and those of other
questions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loong_core.config import CheckpointSection, LoggingSection, RunFolder, TrainSection
from loong_core.config.loading import Loaded
from loong_core.device import select
from loong_core.parallel.ranks import RankPlace
from loong_llm.tokenizer.byte_level import byte_tokenizer
from loong_vlm.answer_grid import Answered, draw_answers
from loong_vlm.check import checked
from loong_vlm.data.media import Medium, Stretch
from loong_vlm.digit_questions import (
    KINDS,
    SIDE,
    DigitQuestion,
    digit_pictures,
    digit_questions,
    split,
    write_pictures,
    write_questions,
)
from loong_vlm.evaluate import judge_files
from loong_vlm.inference import Judged, OpenedVisionModel, open_vision_folder
from loong_vlm.recipes.fine_tuning import fine_tune
from loong_vlm.recipes.training_config import (
    VisionDataSection,
    VisionModelSection,
    VisionSourceSection,
    VisionTrainingConfig,
)

TRAINED = {"which": 3000, "compare": 5000, "sum": 9000}
HELD_OUT = 240
"""Questions of each kind."""
SHOWN = 12
"""Of each kind, those that `answers.png` shows."""

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role[0] }}{{ message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a{% endif %}"
)
"""A chat template that costs a turn three tokens of bytes."""

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PATCH, MERGE = 2, 2

TOWER = {
    "depth": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 128, "patch_size": PATCH,
    "spatial_merge_size": MERGE, "temporal_patch_size": 1, "window_size": SIDE, "fullatt_block_indexes": [0, 1],
}  # fmt: skip
LANGUAGE = {
    "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 256, "max_position_embeddings": 512, "max_window_layers": 3, "initializer_range": 0.08,
}  # fmt: skip


def write_quickstart_parts(output: Path) -> None:
    """Data and parts: `data` with pictures and questions, `tower` and `language` with a small model's config each."""
    data = output / "data"
    write_pictures(data)
    _, digits = digit_pictures()
    training, held_out = split()
    questions: list[DigitQuestion] = []
    for kind, count in TRAINED.items():
        questions += digit_questions(digits, training, kind, count, seed=0)  # type: ignore[arg-type]
        own = digit_questions(digits, held_out, kind, HELD_OUT, seed=1)  # type: ignore[arg-type]
        write_questions(data / f"held_out_{kind}.jsonl", own)
    write_questions(data / "train.jsonl", questions)
    _write_tower(output / "tower")
    _write_language(output / "language")


def _write_tower(folder: Path) -> None:
    """A Qwen2.5-VL of which the tower is used: its config, its tokenizer, and how it reads images; no weights."""
    from loong_vlm.families.registry import named_vision_config

    hf: dict[str, Any] = dict(named_vision_config("qwen2.5-vl-3b"))
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    tokenizer.chat_template = TEMPLATE
    ids = tokenizer.get_vocab()
    hf["vision_config"] = {**hf["vision_config"], **TOWER}
    hf |= {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf, indent=2))
    tokenizer.save_pretrained(folder)
    reads = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 1,
        "min_pixels": SIDE * SIDE,
        "max_pixels": SIDE * SIDE,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(reads, indent=2))


def _write_language(folder: Path) -> None:
    """A small Qwen2.5 without weights."""
    from loong_llm.families.registry import named_config

    tokenizer = byte_tokenizer()
    hf: dict[str, Any] = {**named_config("qwen2.5-0.5b"), **LANGUAGE}
    hf |= {"vocab_size": len(tokenizer) + len(SPECIAL), "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf, indent=2))


def quickstart_config(output: Path) -> VisionTrainingConfig:
    """The run, with sizes for two CPU cores and four minutes; its parts are what `write_quickstart_parts` writes."""
    data = output / "data"
    return VisionTrainingConfig(
        output=str(output),
        model=VisionModelSection(tower=str(output / "tower"), language=str(output / "language")),
        data=VisionDataSection(
            train=[VisionSourceSection(path=str(data / "train.jsonl"))],
            validation=[VisionSourceSection(path=str(data / f"held_out_{kind}.jsonl")) for kind in KINDS],
            sequence_length=256,
        ),
        train=TrainSection(
            steps=1000,
            global_batch_size=8,
            micro_batch_size=4,
            lr=3e-3,
            min_lr=1e-4,
            warmup_steps=60,
            validate_every=500,
            validation_steps=4,
        ),
        checkpoint=CheckpointSection(every=500),
        logging=LoggingSection(every=100),
    )


def quickstart(output: Path) -> None:
    """Train the quickstart's model into `output`, and show what came of it. Collective over ranks.

    Args:
        output: the run folder, in which `write_quickstart_parts` has written.
    """
    place = RankPlace.from_env()
    config = quickstart_config(output)
    checked(Loaded(config, [], frozenset()), place.world_size)
    fine_tune(config)
    if place.rank == 0:
        show(config)


def show(config: VisionTrainingConfig) -> dict[str, dict[str, float]]:
    """Print and draw what a finished quickstart answers; the share of right answers by kind and pictures shown."""
    folder = RunFolder(Path(config.output))
    model = open_vision_folder(folder.hf, select(config.device).device.bind(0))
    found: dict[str, dict[str, float]] = {}
    print(f"\nheld-out questions about pictures of which none was trained on, {HELD_OUT} of each kind:")
    print(f"{'':10}  {'pictures':>8}  {'blank':>8}  {'swapped':>8}  {'chance':>8}")
    for kind, (_, _, chance) in KINDS.items():
        found[kind] = {each: _judge(config, model, kind, each).accuracy for each in ("own", "blank", "swapped")}
        print(f"{kind:10}  {_row(found[kind].values())}  {chance:8.1%}")
    means = [sum(each[shown] for each in found.values()) / len(found) for shown in ("own", "blank", "swapped")]
    chance = sum(each[2] for each in KINDS.values()) / len(KINDS)
    print(f"{'all':10}  {_row(means)}  {chance:8.1%}")
    _draw(folder.root, model)
    print(f"\npictures, questions and answers: {folder.root / 'answers.png'}")
    shown = f"{folder.root / 'data' / 'digits' / '1790.png'}"
    print(f"ask it yourself: loong-vlm generate {folder.hf} --image {shown} --prompt '{KINDS['which'][0]}'")
    print(f"{means[0]:.1%} of held-out questions answered to the letter, model in {folder.hf}")
    return found


def _judge(config: VisionTrainingConfig, model: OpenedVisionModel, kind: str, shown: str) -> Judged:
    path = Path(config.output) / "data" / f"held_out_{kind}.jsonl"
    return judge_files(
        model,
        [str(path)],
        sequence_length=config.data.sequence_length,
        pictures=shown,  # type: ignore[arg-type]
    )


def _row(shares: Any) -> str:
    return "  ".join(f"{share:8.1%}" for share in shares)


def _draw(root: Path, model: OpenedVisionModel) -> None:
    """The first held-out questions of each kind, answered."""
    pictures, digits = digit_pictures()
    _, held_out = split()
    shown = [each for kind in KINDS for each in digit_questions(digits, held_out, kind, SHOWN, seed=1)]
    media = [
        [Medium("image", Stretch(root / "data" / "digits" / f"{number}.png")) for number in each.pictures]
        for each in shown
    ]
    answers = model.answer([(each.text, own) for each, own in zip(shown, media, strict=True)], max_new_tokens=8)
    answered = [
        Answered([pictures[number] for number in each.pictures], each.text, answer, each.answer)
        for each, answer in zip(shown, answers, strict=True)
    ]
    draw_answers(answered, root / "answers.png")
