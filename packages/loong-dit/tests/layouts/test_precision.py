"""Under the engine bf16 is what a plain module in bf16 computes: times, modulation and angles stay in float32."""

import pytest
import torch
from dit_toys.qwen_image import QWEN_IMAGE
from dit_toys.runs import SIZES, write_cache
from dit_toys.wan import TINY, randomised

from loong_core.device.cpu import CpuDevice
from loong_core.engine.fsdp.engine import FsdpEngine
from loong_core.engine.settings import EngineSettings
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_dit.data.assembly import Noising, assemble
from loong_dit.data.cache import LatentCache
from loong_dit.families.registry import find_family
from loong_dit.flow.loss import velocity_loss
from loong_dit.flow.timesteps import TimestepDistribution

MODELS = {"wan": (TINY, SIZES[1]), "qwen image": (QWEN_IMAGE, SIZES[0])}


def losses(cache, model):
    """The engine's loss, that of a plain module of the same weights, and the dtypes that blocks were given."""
    hf, size = MODELS[model]
    family = find_family(hf["_class_name"])
    config = family.config(hf)
    found = LatentCache(cache)
    noising = Noising(family.patch_form(config), found.manifest, 3, TimestepDistribution(), 0.0, family.text_length)
    chosen = [number for number, each in enumerate(found.samples) if each.size == size][:2]
    batch = assemble([(number, found.read(number)) for number in chosen], found.empty_text(), noising)

    plain, whole = (family.build(config, ParallelContext.single(), dtype) for dtype in (torch.bfloat16, torch.float32))
    for rounded, parameter in zip(plain.parameters(), randomised(whole).parameters(), strict=True):
        rounded.data.copy_(parameter)
    with torch.no_grad():
        expected = velocity_loss(plain, batch, None).loss_sum / 2

    context = ParallelContext.build(Layout(), "cpu")
    settings = EngineSettings(precision="bf16")
    engine = FsdpEngine(
        [randomised(family.build(config, context, torch.float32))],
        family.weight_map(config), context, CpuDevice(), settings,
    )  # fmt: skip
    seen = {}

    def note(module, given):
        seen.update({name: value.dtype for name, value in vars(given[-1]).items() if isinstance(value, torch.Tensor)})
        rotations = [value for name, value in vars(given[-1]).items() if "rotation" in name]
        seen["angles"] = {table.dtype for rotation in rotations for table in rotation}

    engine.stages[0].layers[1].register_forward_pre_hook(note)
    return engine.accumulate([batch], velocity_loss).loss, float(expected), seen


@pytest.mark.parametrize("model", MODELS)
def test_bf16_under_the_engine_is_bf16_of_a_plain_module(ranks, tmp_path, model):
    (found,) = ranks.run(1, losses, write_cache(tmp_path / "cache"), model)
    loss, expected, seen = found
    assert loss == pytest.approx(expected, rel=1e-6)
    assert seen["angles"] == {torch.float32}
    assert seen[{"wan": "modulation", "qwen image": "image_time"}[model]] is torch.float32
