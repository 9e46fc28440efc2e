"""Pictures as towers see them, prompts as lerobot writes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from loong_vla.data.augmentation import AugmentationSection, draw_changes
from loong_vla.data.images import augment, fit_pictures
from loong_vla.data.prompts import pi0_prompt, pi05_prompt


@pytest.mark.parametrize(("height", "width"), [(48, 48), (20, 64), (77, 31), (32, 32)])
def test_pictures_are_brought_to_size_as_lerobot_does(height: int, width: int) -> None:
    resize_with_pad_torch = pytest.importorskip("lerobot.policies.common.vla_utils").resize_with_pad_torch

    pictures = torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8, generator=torch.manual_seed(0))
    theirs = pictures.float() / 255
    if (height, width) != (32, 32):
        theirs = resize_with_pad_torch(theirs, 32, 32)
    torch.testing.assert_close(fit_pictures(pictures, 32), theirs * 2 - 1, rtol=0, atol=1e-6)


def test_states_are_told_in_lerobots_bins() -> None:
    state = np.array([-1.2, -1.0, -0.004, 0.0, 0.5, 1.0, 1.7], np.float32)
    prompt = pi05_prompt("pick_up the\ncup ", state)
    assert prompt == "Task: pick up the cup, State: -1 0 127 128 192 255 255;\nAction: "
    assert pi0_prompt("go") == pi0_prompt("go\n") == "go\n"


def changed(picture: Tensor, *amounts: float) -> Tensor:
    return augment(picture[None, None], torch.tensor(amounts).view(1, 1, 7))[0, 0]


def test_no_change_is_none_and_a_quarter_turn_is_one() -> None:
    picture = torch.rand(3, 8, 8, generator=torch.manual_seed(0)) * 2 - 1
    same = changed(picture, 1, 0, 0, 0, 1, 1, 1)
    torch.testing.assert_close(same, picture, atol=1e-5, rtol=0)
    turned = changed(picture, 1, 0, 0, torch.pi / 2, 1, 1, 1)
    torch.testing.assert_close(turned, picture.rot90(1, (1, 2)), atol=1e-5, rtol=0)
    grey = changed(picture, 1, 0, 0, 0, 1, 1, 0)
    torch.testing.assert_close(grey[0], grey[1], atol=1e-5, rtol=0)


def test_changes_stay_within_what_is_allowed_and_depend_on_their_generator_only() -> None:
    section = AugmentationSection(crop=0.1, shift=0.05, rotate=10, brightness=0.2, contrast=0.3, saturation=0.4)
    drawn = draw_changes(section, np.random.default_rng(5), 200)
    np.testing.assert_array_equal(drawn, draw_changes(section, np.random.default_rng(5), 200))
    assert drawn[:, 0].min() >= 0.9
    assert drawn[:, 0].max() <= 1
    assert np.abs(drawn[:, 1:3]).max() <= 0.15
    assert np.degrees(np.abs(drawn[:, 3]).max()) <= 10
    assert np.abs(drawn[:, 4:] - 1).max(0) == pytest.approx([0.2, 0.3, 0.4], abs=0.02)
