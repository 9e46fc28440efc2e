"""Adapters over a frozen base in 4 bits (QLoRA) compute what they would over the same values written out."""

import pytest
import torch
from lora_toys import CONTEXT, SETTINGS, train
from toy_models import CONFIGS, batch_of, reference, save

from loong_core.engine.fsdp.engine import FsdpEngine
from loong_core.engine.megatron.engine import MegatronEngine
from loong_core.errors import UserError
from loong_core.nn.four_bit import BLOCK, BYTES_PER_NUMBER, FourBitWeight
from loong_core.nn.four_bit_base import parallel_linears, round_base, write_out_base
from loong_core.nn.lora import apply_lora
from loong_core.parallel.layout import Layout
from loong_llm.model import build_stages, open_model

SHAPE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
CASES = {
    "qwen3": {**CONFIGS["qwen3, head_dim unlike hidden/heads"], **SHAPE},
    "llama, one key-value head, every bias": {
        **CONFIGS["llama, one key-value head, every bias, head_dim unlike hidden/heads"],
        **SHAPE,
    },
}
LAYOUTS = {
    "two tensor ranks": (Layout(tensor=2), MegatronEngine),
    "two pipeline ranks": (Layout(pipeline=2), MegatronEngine),
    "two data ranks that share weights": (Layout(), FsdpEngine),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def base(request, tmp_path):
    return save(reference(request.param), tmp_path / "base")


def adapted(folder, settings, *, written_out, dtype=torch.float32):
    """The rounded model under adapters drawn at random; with its values written out, or in 4 bits."""
    source = open_model(folder)
    stages = build_stages(source, CONTEXT, dtype=dtype)
    told = round_base(stages, CONTEXT.device)
    if written_out:
        write_out_base(stages)
    apply_lora(stages, source.weight_map, source.config.num_layers, CONTEXT, settings)
    for number, parameter in enumerate(each for each in stages[0].parameters() if each.requires_grad):
        drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        with torch.no_grad():
            parameter.copy_(1 + 0.1 * drawn if parameter.ndim == 1 else 0.3 * drawn)
    return stages[0], told


def test_each_number_is_the_nearest_of_the_sixteen_values_times_the_largest_of_its_block():
    # QLoRA, appendix E: quantiles of both halves of a normal distribution, with a zero, scaled to [-1, 1].
    offset = 0.9677083
    positive = torch.special.ndtri(torch.linspace(offset, 0.5, 9, dtype=torch.float64)[:-1])
    negative = -torch.special.ndtri(torch.linspace(offset, 0.5, 8, dtype=torch.float64)[:-1])
    values = torch.cat([negative, torch.zeros(1), positive]).float().sort().values
    values /= values.max()
    weight = torch.randn(5, 3 * BLOCK, generator=torch.Generator().manual_seed(0))
    blocks = weight.view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True)
    nearest = (blocks[..., None] / scales[..., None] - values).abs().argmin(-1)
    torch.testing.assert_close(
        FourBitWeight(weight).whole(), (values[nearest] * scales).view_as(weight), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("settings", [SETTINGS["queries and values"], SETTINGS["dora"]], ids=["lora", "dora"])
def test_logits_and_gradients_are_those_of_the_same_values_written_out(base, settings):
    four_bit, told = adapted(base, settings, written_out=False)
    whole, _ = adapted(base, settings, written_out=True)
    batch = batch_of([9, 4])
    found = []
    for stage in (four_bit, whole):
        logits = stage.logits(batch)
        logits.logsumexp(-1).sum().backward()
        gradients = {name: each.grad for name, each in stage.named_parameters() if each.requires_grad}
        found.append((logits.detach(), gradients))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=1e-6)
    assert found[0][1].keys() == found[1][1].keys()
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(gradient, found[1][1][name], rtol=1e-5, atol=1e-6, msg=name)
    matrices = [linear.weight for _, linear in parallel_linears(four_bit)]
    assert all(isinstance(weight, FourBitWeight) for weight in matrices)
    assert told.after == sum(weight.shape.numel() for weight in matrices) * BYTES_PER_NUMBER
    assert told.before == 4 * sum(weight.shape.numel() for weight in matrices)


def test_backward_needs_nothing_of_a_matrix_that_forward_wrote_out():
    weight = FourBitWeight(torch.randn(32, BLOCK))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.shape) or tensor, lambda x: x):
        y = weight.linear(torch.randn(3, BLOCK, requires_grad=True))
    assert y.requires_grad
    assert kept == []


def test_layouts_and_engines_give_the_losses_norms_and_adapters_of_one_rank(ranks, tmp_path):
    base, settings = save(reference(CASES["qwen3"]), tmp_path / "base"), SETTINGS["every linear"]
    ((curve, weights),) = ranks.run(1, train, base, Layout(), settings, None, True)
    ((plain, _),) = ranks.run(1, train, base, Layout(), settings)
    assert curve[0][0] != pytest.approx(plain[0][0], rel=1e-4), "the base was not rounded"
    for case, (layout, engine) in LAYOUTS.items():
        theirs, their_weights = ranks.run(2, train, base, layout, settings, None, True, engine)[0]
        for (loss, norm), (their_loss, their_norm) in zip(curve, theirs, strict=True):
            assert their_loss == pytest.approx(loss, rel=1e-5), case
            assert their_norm == pytest.approx(norm, rel=1e-4), case
        assert their_weights.keys() == weights.keys()
        for name, value in weights.items():
            torch.testing.assert_close(their_weights[name], value, rtol=2e-3, atol=2e-4, msg=f"{case}: {name}")


def test_a_layer_whose_inputs_are_no_multiple_of_a_block_is_refused_by_name(tmp_path):
    folder = save(reference(CONFIGS["qwen2"]), tmp_path / "base")
    stages = build_stages(open_model(folder), CONTEXT)
    with pytest.raises(UserError, match=r"blocks of 64 numbers, and layers.0.attention.qkv has 24 inputs on a rank"):
        round_base(stages, CONTEXT.device)
