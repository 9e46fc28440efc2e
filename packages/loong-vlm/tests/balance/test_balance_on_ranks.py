"""Balanced over gloo ranks, a run computes the same loss and gradients as without, and tells how even it was."""

import pytest
import torch
from balanced_ranks import apart_step, step
from picture_toys import PROCESSOR, picture, vision_tokenizer, write_lines
from vision_toys import QWEN2_5_VL, reference, save

IMAGE, VIDEO = 259, 260


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = {
        **QWEN2_5_VL,
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": 261,
        "vision_end_token_id": 262,
        "text_config": {**QWEN2_5_VL["text_config"], "vocab_size": 263},
        "vision_config": {**QWEN2_5_VL["vision_config"], "patch_size": PROCESSOR.patch, "window_size": 16},
    }
    assert vision_tokenizer().convert_tokens_to_ids("<|image_pad|>") == IMAGE
    return save(reference(config), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Long texts without an image, and short ones with one, two or three."""
    folder = tmp_path_factory.mktemp("data")
    records = []
    for number in range(40):
        images = [f"{number}-{place}.png" for place in range(number % 4)]
        for place, name in enumerate(images):
            picture(8 + 8 * place, 8 + 4 * (number % 7), seed=number).save(folder / name)
        shown = "<image>" * len(images)
        turns = [{"from": "human", "value": f"{shown}{number}?"}, {"from": "gpt", "value": "abc " * (3 + number % 17)}]
        records.append({"images": images, "conversations": turns})
    return write_lines(folder / "data.jsonl", records)


def test_balance_on_equals_off_up_to_the_order_of_sums(ranks, model, data, tmp_path):
    off = ranks.run(2, step, model, data, tmp_path, False)[0]
    on = ranks.run(2, step, model, data, tmp_path, True)
    torch.testing.assert_close(on[0]["loss"], off["loss"], rtol=1e-12, atol=0)
    torch.testing.assert_close(on[0]["gradients"], off["gradients"], rtol=1e-9, atol=1e-14)
    assert off["figures"] == [{}, {}]
    assert on[0]["figures"] == on[1]["figures"]
    for figures in on[0]["figures"]:
        assert figures["imbalance"] <= figures["imbalance_before"]
    assert any(figures["imbalance"] < figures["imbalance_before"] for figures in on[0]["figures"])


def whole_gradients(outcomes, step_number):
    found = {}
    for piece, values in (box for outcome in outcomes for box in outcome["gradients"][step_number]):
        found.setdefault(piece.name, torch.full(piece.global_shape, torch.nan, dtype=torch.float64))[piece.slices] = (
            values
        )
    return found


def test_balance_on_equals_off_where_the_encoder_is_apart(ranks, model, data, tmp_path):
    off = ranks.run(4, apart_step, model, data, tmp_path, False)
    on = ranks.run(4, apart_step, model, data, tmp_path, True)
    assert [each["images"] for each in off] != [each["images"] for each in on]
    torch.testing.assert_close(torch.tensor(on[0]["losses"]), torch.tensor(off[0]["losses"]), rtol=1e-12, atol=0)
    for number in range(2):
        torch.testing.assert_close(whole_gradients(on, number), whole_gradients(off, number), rtol=1e-9, atol=1e-14)
