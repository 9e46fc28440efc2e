"""The quickstart's data and judge."""

import torch

from loong_dit.data.cache import LatentCache
from loong_dit.digits.judge import DigitJudge
from loong_dit.digits.videos import CANVAS, FRAMES, NAMES, TRACKS, moving, real_digits, still, write_digit_cache


def test_the_judge_is_right_about_real_digits_that_it_has_not_seen():
    trained, held_out = real_digits()
    assert len(trained.labels) == 1500
    assert len(held_out.labels) == 297
    judge = DigitJudge(trained)
    assert judge.share_right(held_out.pictures, held_out.labels) >= 0.97
    others = held_out.labels[torch.randperm(297, generator=torch.Generator().manual_seed(0))]
    assert judge.share_right(held_out.pictures, others) < 0.2  # of captions swapped: chance


def test_a_digit_moves_as_its_caption_says_and_is_found_again():
    picture = real_digits()[0].pictures[0]
    for direction in TRACKS:
        video = moving(picture, direction)
        assert video.shape == (1, FRAMES, CANVAS, CANVAS)
        assert torch.allclose(still(video, direction), picture)
    right = [int((frame > -1).nonzero()[:, 1].min()) for frame in moving(picture, "right")[0]]
    assert right == sorted(right)
    assert len(set(right)) == FRAMES


def test_the_cache_has_every_digit_in_every_direction(tmp_path):
    write_digit_cache(tmp_path / "cache")
    captions = {each.caption for each in LatentCache(tmp_path / "cache").samples}
    assert captions == {f"{name} moving {direction}" for name in NAMES for direction in TRACKS}
