"""Every way to divide the work gives the loss, gradient norm and gradients of one rank, in float64.

`--layouts all` (nox -s layouts-dit) tries the whole matrix, the tests of the package a part of it.
"""

import pytest
import torch
import torch.distributed as dist
from dit_toys.qwen_image import QWEN_IMAGE
from dit_toys.runs import SIZES, write_cache
from dit_toys.wan import TINY, randomised

from loong_core.device.cpu import CpuDevice
from loong_core.engine.fsdp.engine import FsdpEngine
from loong_core.engine.settings import EngineSettings
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_dit.data.assembly import Noising
from loong_dit.data.cache import LatentCache
from loong_dit.data.stream import LatentStream
from loong_dit.families.registry import find_family
from loong_dit.flow.loss import velocity_loss
from loong_dit.flow.timesteps import TimestepDistribution

MODELS = {
    "wan": (TINY, "videos", SIZES[:2]),
    "qwen image": (QWEN_IMAGE, "videos", (SIZES[0], SIZES[2])),
    "qwen image edit": ({**QWEN_IMAGE, "zero_cond_t": True}, "edits", ((1, 4, 4), (1, 4, 6))),
}
"""Each with the cache it reads, and the sizes of latents that it is given."""

LAYOUTS = {
    "two shards (FSDP2)": (2, Layout(), "everything"),
    "two copies (DDP)": (2, Layout(replicate=2), "everything"),
    "ZeRO-1": (2, Layout(), "optimizer"),
    "Ulysses of two": (2, Layout(context=2, ulysses=2), "everything"),
    "ring of two": (2, Layout(context=2), "everything"),
    "two copies of two shards (HSDP)": (4, Layout(replicate=2), "everything"),
    "ring of two on two copies": (4, Layout(context=2, replicate=2), "everything"),
    "ring of two of Ulysses of two": (4, Layout(context=4, ulysses=2), "everything"),
    "Ulysses of two, two data ranks": (4, Layout(context=2, ulysses=2), "everything"),
}
ALWAYS = ("two copies (DDP)", "Ulysses of two", "ring of two")


def pytest_generate_tests(metafunc):
    if "layout" in metafunc.fixturenames:
        names = LAYOUTS if metafunc.config.getoption("--layouts") == "all" else ALWAYS
        metafunc.parametrize("layout", names)


def gradients(caches, model, layout, sharding):
    """Loss, gradient norm and whole gradients of a global batch of four samples of several sizes."""
    hf, kind, sizes = MODELS[model]
    family = find_family(hf["_class_name"])
    config = family.config(hf)
    context = ParallelContext.build(layout, "cpu")
    module = randomised(family.build(config, context, torch.float64))
    settings = EngineSettings(precision="fp64", sharding=sharding)
    engine = FsdpEngine([module], family.weight_map(config), context, CpuDevice(), settings)
    found = LatentCache(caches[kind])
    noising = Noising(
        family.patch_form(config), found.manifest, 3, TimestepDistribution(shift=3.0), 0.3,
        family.text_length and 8, first_frame=0.5, clean_references=hf.get("zero_cond_t", False),
    )  # fmt: skip
    stream = LatentStream(
        found,
        [number for number, each in enumerate(found.samples) if each.size in sizes],
        noising,
        batching="packed",
        global_batch_size=4,
        micro_batch_size=min(2, 4 // context.data.size),
        data_rank=context.data.rank,
        data_size=context.data.size,
    )
    for shard in engine.stages[0].parameters():
        assert shard.dtype is torch.float64
    loss = engine.accumulate(in_float64(stream.next_step()), velocity_loss)
    norm = engine.grad_norm()
    pieces = [(each.key, each.piece, each.tensor.clone()) for each in engine.gradient_pieces()]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, pieces)
    whole = {}
    for key, piece, values in (entry for rank in everyone for entry in rank):
        whole.setdefault(key, torch.full(piece.global_shape, torch.nan, dtype=values.dtype))[piece.slices] = values
    return loss.loss, loss.tokens, norm, whole


def in_float64(batches):
    """The noisy patches and targets in float64, so that nothing is rounded on the way."""
    from dataclasses import replace

    return [
        replace(each, patches=each.patches.double(), target=each.target.double(), weights=each.weights.double())
        for each in batches
    ]


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layouts")
    edits = write_cache(folder / "edits", sizes=((1, 4, 4), (1, 4, 6)), references=(((2, 2),), ((4, 2), (2, 4))))
    return {"videos": write_cache(folder / "videos"), "edits": edits}


@pytest.fixture(scope="module")
def one_rank(ranks, caches):
    return {model: ranks.run(1, gradients, caches, model, Layout(), "everything")[0] for model in MODELS}


@pytest.mark.parametrize("model", MODELS)
def test_a_layout_gives_the_loss_and_gradients_of_one_rank(ranks, caches, one_rank, model, layout):
    expected_loss, expected_count, expected_norm, expected = one_rank[model]
    size, degrees, sharding = LAYOUTS[layout]
    for loss, count, norm, whole in ranks.run(size, gradients, caches, model, degrees, sharding):
        assert count == expected_count == 4
        assert loss == pytest.approx(expected_loss, rel=1e-12)
        assert norm == pytest.approx(expected_norm, rel=1e-12)
        assert whole.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(whole[key], value, rtol=1e-10, atol=1e-13, msg=key)
