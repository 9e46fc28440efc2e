"""What tower and projector add to a plan, by the form that the run file gives them."""

import pytest
import torch
from torch import nn

from loong_core.config.sections import LayoutSection, PartsSection
from loong_core.device.cpu import CpuDevice
from loong_core.nn.parts import ALL_BLOCKS, NOTHING
from loong_core.nn.recompute import keep_less
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.plan.devices import find_accelerator
from loong_vlm.planning import KEPT_OF_BLOCK, vision_share
from loong_vlm.recipes.run_parts import run_parts
from loong_vlm.recipes.training_config import (
    EncoderSection,
    VisionLoraSection,
    VisionModelSection,
    VisionTrainingConfig,
)
from loong_vlm.towers.axial_rotary import axial_rotation
from loong_vlm.towers.block import VisionBlock
from loong_vlm.towers.block_config import VisionBlockConfig
from loong_vlm.towers.patch_order import frames_apart, rows_and_columns

LAYOUT, RANKS = Layout(tensor=2, pipeline=2), 8
CONFIG = VisionTrainingConfig(model=VisionModelSection(source="qwen3-vl-30b-a3b"), precision="bf16")
_, PARTS = run_parts(CONFIG)


def share(config=CONFIG, **encoder):
    section = EncoderSection(**encoder) if encoder else None
    return vision_share(config.model_copy(update={"encoder": section}), PARTS, LAYOUT, find_accelerator("h200"), RANKS)


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


def test_gradients_flow_through_a_tower_that_is_adapted_and_not_through_one_that_is_left_as_it_is():
    whole = share()
    of_tower, of_language = (
        share(CONFIG.model_copy(update={"lora": VisionLoraSection(parts=[part])})) for part in ("tower", "language")
    )
    assert of_tower.kept == whole.kept
    assert of_language.kept == 0
    # Forward, and backward to the inputs; or forward alone.
    assert of_tower.seconds == pytest.approx(whole.seconds * 2 / 3)
    assert of_language.seconds == pytest.approx(whole.seconds / 3)


@pytest.mark.parametrize(("recompute", "widths"), [(NOTHING, KEPT_OF_BLOCK), (ALL_BLOCKS, 1)])
def test_a_block_keeps_what_the_plan_counts(recompute, widths):
    one, config = ParallelContext.single(), VisionBlockConfig(256, 4, 1024, "gelu", norm_eps=1e-5)
    tower = nn.Module()
    tower.layers = nn.ModuleList(VisionBlock(config, one, torch.float32) for _ in range(3))
    keep_less([tower], one, CpuDevice(), recompute=recompute)
    grid = torch.tensor([[1, 8, 8]])
    rotation = axial_rotation(rows_and_columns(grid, 2), config.head_dim, 1e4, torch.float32)
    shared = {each.untyped_storage().data_ptr() for each in (*tower.parameters(), rotation.cos, rotation.sin)}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in shared:
            kept[storage.data_ptr()] = storage
        return tensor

    stream, added, bytes_kept = torch.ones(64, config.width, requires_grad=True), None, []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for block in tower.layers:
            stream, added = block(stream, added, 64, frames_apart(grid), rotation)
            bytes_kept.append(sum(storage.nbytes() for storage in kept.values()))
    assert (bytes_kept[2] - bytes_kept[1]) / (4 * 64 * config.width) == pytest.approx(widths, rel=0.02)
