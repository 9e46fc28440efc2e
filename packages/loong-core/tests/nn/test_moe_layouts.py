"""A mixture of experts shared by ranks computes what one rank computes: outputs, gradients, load, router choices."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from loong_core.nn.moe.balance import take_load
from loong_core.nn.moe.choices import differing_choices, recorded_choices
from loong_core.nn.moe.config import MoEConfig, RouterConfig
from loong_core.nn.moe.exchange import exchange_rows, gather_rows, sum_to_rows
from loong_core.nn.moe.layer import MixtureOfExperts
from loong_core.nn.moe.load import RoutingRecord
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout

HIDDEN = 8
TOKENS = [11, 8, 5, 10]
"""Tokens of each microbatch of a step; odd numbers leave the last tensor rank's run to be filled up."""
EXACT = {"rtol": 1e-10, "atol": 1e-12}
ROUTER = RouterConfig(
    8, 3, scores="sigmoid", bias=True, groups=4, top_groups=2, scaling=2.0, aux_coefficient=0.3, z_coefficient=0.1
)
DROPLESS = MoEConfig(ROUTER, expert_size=4, shared_size=6, shared_gate=True)
SKEWED = MoEConfig(replace(ROUTER, bias_rate=0.0), expert_size=4)
"""Built with a bias that sends every token to the first half of the experts."""
CAPACITY = MoEConfig(ROUTER, expert_size=4, capacity_factor=0.8)


def my_part(name, whole, context):
    """What this rank holds of a parameter or gradient."""
    tensor, expert, expert_tensor = context.tensor, context.expert, context.expert_tensor
    if name.startswith("experts."):
        whole = whole.chunk(expert.size)[expert.rank]
    if name == "experts.gate_up":
        return torch.cat([half.chunk(expert_tensor.size, 1)[expert_tensor.rank] for half in whole.chunk(2, 1)], 1)
    if name == "experts.down":
        return whole.chunk(expert_tensor.size, 2)[expert_tensor.rank]
    if name == "shared.gate_up.weight":
        return torch.cat([half.chunk(tensor.size)[tensor.rank] for half in whole.chunk(2)])
    return whole.chunk(tensor.size, 1)[tensor.rank] if name == "shared.down.weight" else whole


def build(config, context):
    """The layer with this rank's part of parameters that are drawn alike on every rank."""
    whole = MixtureOfExperts(HIDDEN, config, ParallelContext.single(), torch.float64, 0)
    module = MixtureOfExperts(HIDDEN, config, context, torch.float64, 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
            if config == SKEWED and name == "router.bias":
                parameter[:4] += 100.0
            module.get_parameter(name).copy_(my_part(name, parameter, context))
    return module


def step(config, context):
    """This rank's part of a step, its data rank taking its share of the microbatches.

    Returns outputs and input gradients by microbatch, each with its first token, then choices by microbatch, gradients
    summed over the ranks that hold the same, and the load.
    """
    module = build(config, context)
    outputs, input_gradients, choices = {}, {}, {}
    for number in range(context.data.rank, len(TOKENS), context.data.size):
        tokens = TOKENS[number]
        generator = torch.Generator().manual_seed(number)
        x, upstream = torch.randn(2, tokens, HIDDEN, dtype=torch.float64, generator=generator)
        length = -(-tokens // context.tensor.size)
        first, held = context.tensor.rank * length, min(length, tokens - context.tensor.rank * length)
        local = torch.zeros(length, HIDDEN, dtype=torch.float64)
        local[:held] = x[first : first + held]
        local.requires_grad_()
        with recorded_choices([module], context) as recorded:
            y = module(local, tokens, RoutingRecord(tokens, torch.tensor(tokens - 1), 1))
        (y[:held] * upstream[first : first + held]).sum().backward()
        outputs[number], input_gradients[number] = (first, y[:held].detach()), (first, local.grad[:held])
        choices[number] = recorded
    gradients = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            if getattr(parameter, "sequence_parallel", False):
                dist.all_reduce(parameter.grad, group=context.tensor.group)
            copies = context.expert_data if name.startswith("experts.") else context.data_context
            if copies.size > 1:
                dist.all_reduce(parameter.grad, group=copies.group)
            gradients[name] = parameter.grad
    return outputs, input_gradients, choices, gradients, take_load([module], context)


def compare(config, layout):
    """On each rank: raise where it differs from one rank's step."""
    context = ParallelContext.build(layout, "cpu")
    outputs, input_gradients, choices, gradients, load = step(config, ParallelContext.single())
    ours = step(config, context)
    for expected, found in ((outputs, ours[0]), (input_gradients, ours[1])):
        for number, (first, part) in found.items():
            torch.testing.assert_close(part, expected[number][1][first : first + part.shape[0]], **EXACT)
    for number, recorded in ours[2].items():
        assert differing_choices(choices[number], recorded) == 0
    assert ours[3].keys() == gradients.keys()
    for name, gradient in ours[3].items():
        torch.testing.assert_close(gradient, my_part(name, gradients[name], context), **EXACT)
    assert ours[4] == pytest.approx(load, rel=1e-12)


LAYOUTS = {
    "expert 2": (2, Layout(expert=2)),
    "expert-tensor 2": (2, Layout(expert_tensor=2)),
    "tensor 2, expert 2": (2, Layout(tensor=2, expert=2)),
    "expert 2, expert-tensor 2": (4, Layout(expert=2, expert_tensor=2)),
    "tensor 2, expert 2, expert-tensor 2": (4, Layout(tensor=2, expert=2, expert_tensor=2)),
    "tensor 2, expert 4": (4, Layout(tensor=2, expert=4)),
}


@pytest.mark.parametrize(("world_size", "layout"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_outputs_gradients_load_and_choices_equal_one_rank(world_size, layout, ranks):
    ranks.run(world_size, compare, DROPLESS, layout)


def test_an_expert_rank_without_any_row_keeps_step_with_the_others(ranks):
    """Backward communicates as forward did, so no rank may leave out a part of it."""
    ranks.run(2, compare, SKEWED, Layout(tensor=2, expert=2))
    ranks.run(4, compare, SKEWED, Layout(expert=2, expert_tensor=2))


def test_with_a_capacity_too_where_no_microbatch_is_shared(ranks):
    """Which choices are dropped depends on the tokens of a rank (here: one microbatch in every layout)."""
    ranks.run(4, compare, CAPACITY, Layout(expert=2, expert_tensor=2))


def products(layout):
    """`<f(x), y>` and `<x, gradient of it>`, each summed over the ranks, for each function that moves rows."""
    context = ParallelContext.build(layout, "cpu")
    axis = context.expert
    sent = [[2, 0], [3, 1]]
    torch.manual_seed(dist.get_rank())
    cases = [
        (5, lambda x: gather_rows(x, axis, [5, 5])),
        (3 * axis.rank, lambda x: gather_rows(x, axis, [0, 3])),
        (4, lambda x: sum_to_rows(x, axis, [1, 3])),
        (3, lambda x: sum_to_rows(x, axis, [3, 0])),
        (sum(sent[axis.rank]), lambda x: exchange_rows(x, axis, sent[axis.rank], [row[axis.rank] for row in sent])),
    ]
    found = []
    for rows, move in cases:
        x = torch.randn(rows, 3, dtype=torch.float64, requires_grad=True)
        out = move(x)
        upstream = torch.randn_like(out)
        out.backward(upstream)
        other = torch.randn_like(x)
        pair = torch.stack([(move(other) * upstream).sum(), (other * x.grad).sum()])
        dist.all_reduce(pair)
        found.append((tuple(pair.tolist()), out.shape[0]))
    return found


def test_moving_rows_has_its_transpose_for_a_gradient(ranks):
    first, second = ranks.run(2, products, Layout(expert=2))
    assert [rows for _, rows in first] == [10, 3, 1, 3, 5]
    assert [rows for _, rows in second] == [10, 3, 3, 0, 1]
    for (forward, backward), _ in first:
        assert forward == pytest.approx(backward, rel=1e-12)
        assert forward != 0


def refusal(layout):
    with pytest.raises(ValueError) as error:
        build(DROPLESS, ParallelContext.build(layout, "cpu"))
    return str(error.value)


def test_experts_that_do_not_divide_are_refused(ranks):
    assert "layout.expert=3 does not divide 8 experts" in ranks.run(3, refusal, Layout(expert=3))[0]
    assert "layout.expert_tensor=3 does not divide" in ranks.run(3, refusal, Layout(expert_tensor=3))[0]
