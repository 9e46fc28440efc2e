"""What tower and projector add to a plan, by the form that the run file gives them."""

import pytest

from loong_core.config.sections import LayoutSection, PartsSection
from loong_core.parallel.layout import Layout
from loong_core.plan.devices import find_accelerator
from loong_vlm.planning import vision_share
from loong_vlm.recipes.run_parts import run_parts
from loong_vlm.recipes.training_config import EncoderSection, VisionModelSection, VisionTrainingConfig

LAYOUT, RANKS = Layout(tensor=2, pipeline=2), 8
CONFIG = VisionTrainingConfig(model=VisionModelSection(source="qwen3-vl-30b-a3b"), precision="bf16")
_, PARTS = run_parts(CONFIG)


def share(**encoder):
    section = EncoderSection(**encoder) if encoder else None
    return vision_share(CONFIG.model_copy(update={"encoder": section}), PARTS, LAYOUT, find_accelerator("h200"), RANKS)


def test_apart_all_ranks_share_the_work_and_keep_a_step_of_it():
    within, apart = share(), share(layout=LayoutSection())
    assert apart.seconds == pytest.approx(within.seconds * 2 / 4)  # by tensor x pipeline in place of tensor ranks
    assert apart.state < within.state  # eight data ranks in place of two share the optimizer's state
    # Of four microbatches in place of the pipeline's two, by twice as many ranks.
    assert apart.kept == pytest.approx(within.kept * 4 / 2 * 2 / 4)
    assert within.features == 0
    assert apart.features > 0


def test_tensor_ranks_divide_the_tower_and_not_the_projector():
    one, two = share(layout=LayoutSection()), share(layout=LayoutSection(tensor=2))
    tower, projector = PARTS.tower.parameter_count(), PARTS.projector.parameter_count()
    assert one.state == pytest.approx((tower + projector) * (6 + 12 / 8))
    assert two.state == pytest.approx((tower / 2 + projector) * (6 + 12 / 4))


def test_recomputation_and_the_hosts_memory_are_counted():
    plain = share(layout=LayoutSection())
    less = share(recompute=PartsSection(mode="full"), offload_features=True)
    assert less.kept < plain.kept / 10
    assert less.seconds == pytest.approx(plain.seconds * 4 / 3)
    assert less.features == 0
