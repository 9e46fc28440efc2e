"""Under every layout of the matrix a model trains as on one rank: loss, every gradient, norm, updates, curve.

In float64 the bound is 1e-10, relative for loss and norm, and for a gradient relative to the largest element of its
tensor. In float32, where sums are taken in another order, the bounds are those below, measured with room to spare.
"""

import torch
from layout_cases import CASES
from layout_choices import differing

EXACT = 1e-10
LOSS, NORM, GRADIENT = 1e-6, 5e-6, 5e-5
"""float32, one step: relative; a gradient relative to the largest element of its tensor."""
UPDATE = 5e-6
"""float32: a weight after the first clipped update, absolute; the update itself is up to 1e-3."""
CURVE = 5e-6
"""float32: a loss of ten steps, relative, while routers choose alike; 1e-3 where they do not."""


def furthest(boxes_of_ranks, whole):
    """The largest difference of the boxes from the whole tensors, relative to these; each element is in one box."""
    seen = {name: torch.zeros(tensor.shape, dtype=torch.int) for name, tensor in whole.items()}
    distance = 0.0
    for boxes in boxes_of_ranks:
        for piece, part in boxes:
            seen[piece.name][piece.slices] += 1
            largest = whole[piece.name].abs().max()
            distance = max(distance, float((part - whole[piece.name][piece.slices]).abs().max() / largest))
    missing = [name for name, count in seen.items() if not bool((count == 1).all())]
    assert not missing, f"not held by exactly one rank: {missing}"
    return distance


def assembled(boxes):
    """Whole tensors from one rank's boxes."""
    whole = {}
    for piece, part in boxes:
        whole.setdefault(piece.name, torch.zeros(piece.global_shape, dtype=part.dtype))[piece.slices] = part
    return whole


def relative(found, expected):
    return abs(found - expected) / abs(expected)


def test_in_float64_loss_gradients_norm_and_choices_equal_one_rank(ran):
    loss, gradients, choices = ran.exact
    norm = sum(each.square().sum().item() for each in gradients.values()) ** 0.5
    steps = [outcome.exact for outcome in ran.ranks]
    distance = furthest([step.gradients for step in steps], gradients)
    ran.line.figures |= {
        "loss64": max(relative(step.loss, loss) for step in steps),
        "grad64": distance,
        "norm64": max(relative(step.norm, norm) for step in steps),
    }
    assert max(ran.line.figures[name] for name in ("loss64", "grad64", "norm64")) < EXACT
    different, total = differing([step.choices for step in steps], choices)
    assert different == 0
    assert (total > 0) == ran.case.has_experts


def test_in_float32_a_step_equals_one_rank_within_its_bounds(ran):
    expected = ran.single.first
    steps = [outcome.first for outcome in ran.ranks]
    figures = {
        "loss32": max(relative(step.loss, expected.loss) for step in steps),
        "norm32": max(relative(step.norm, expected.norm) for step in steps),
        "grad32": furthest([step.gradients for step in steps], assembled(expected.gradients)),
    }
    ran.line.figures |= figures
    assert figures["loss32"] < LOSS
    assert figures["norm32"] < NORM
    assert figures["grad32"] < GRADIENT


def test_one_clipped_update_gives_the_weights_of_one_rank(ran):
    assert ran.single.first.norm > 0.5, "nothing is clipped"
    expected = assembled(ran.single.updated)
    distance = 0.0
    covered = {name: torch.zeros(tensor.shape, dtype=torch.bool) for name, tensor in expected.items()}
    for outcome in ran.ranks:
        for piece, part in outcome.updated:
            distance = max(distance, float((part - expected[piece.name][piece.slices]).abs().max()))
            covered[piece.name][piece.slices] = True
    ran.line.figures["update"] = distance
    assert all(bool(seen.all()) for seen in covered.values())
    assert distance < UPDATE


def test_the_losses_of_ten_steps_are_those_of_one_rank(ran):
    different, _ = differing([outcome.choices for outcome in ran.ranks], ran.single.choices)
    expected = ran.single.curve
    distance = max(
        relative(found[0], wanted[0])
        for outcome in ran.ranks
        for found, wanted in zip(outcome.curve, expected, strict=True)
    )
    ran.line.figures["curve"] = distance
    if ran.case.has_experts:
        ran.line.figures["choices"] = different
    assert expected[-1][0] < expected[0][0] - 0.02, "nothing is learnt"
    assert distance < (CURVE if different == 0 else 1e-3)


def test_the_matrix_has_every_kind_of_layout():
    cases = list(CASES.values())
    assert len(cases) >= 24
    assert {case.ranks for case in cases} == {2, 4, 8}
    assert {case.engine for case in cases} == {"megatron", "fsdp"}
    assert {case.data for case in cases} == {"packed", "one length"}
    assert any(case.layout.virtual_pipeline > 1 for case in cases)
    assert any(case.layout.pipeline_layers for case in cases)
    assert any(case.layout.expert == 2 and case.layout.expert_tensor != case.layout.tensor for case in cases)
    kinds = {(case.layout.ring > 1, case.layout.ulysses > 1) for case in cases}
    assert kinds == {(False, False), (True, False), (False, True), (True, True)}
