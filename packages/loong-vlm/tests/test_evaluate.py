"""What is shown in the place of a held-out question's images."""

import torch

from loong_vlm.data.batch import Pictures
from loong_vlm.evaluate import blanked, swapped


def numbered(rows: list[int]) -> Pictures:
    """Images of `rows` x 2 patches; every value of an image is its number."""
    grid = torch.tensor([[1, each, 2] for each in rows])
    patches = torch.cat([torch.full((2 * each, 3), float(number)) for number, each in enumerate(rows)])
    return Pictures(patches, grid, ("image",) * len(rows))


def shown(pictures: Pictures) -> list[int]:
    return [int(part[0, 0]) for part in pictures.patches.split(pictures.patch_counts)]


def test_no_swapped_image_stays_and_each_keeps_its_size():
    pictures = numbered([2, 3] * 20)
    order = shown(swapped(pictures))
    assert sorted(order) == list(range(40))
    assert all(number != place and number % 2 == place % 2 for place, number in enumerate(order))


def test_images_of_one_question_do_not_stay_together_when_swapped():
    order = shown(swapped(numbered([2] * 40)))
    together = sum(order[place + 1] - order[place] == 1 for place in range(0, 40, 2))
    assert together <= 3  # of 20 pairs; half a turn of all images would keep 20


def test_a_lone_image_stays_when_swapped_and_is_grey_when_blanked():
    assert shown(swapped(numbered([2]))) == [0]
    assert blanked(numbered([2, 3])).patches.abs().sum() == 0
