"""Parts of a model that repeat their forward or use the host's memory train as they do without."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from plan_toys import MIXTURE, PLAIN

from loong_core.data.batch import PackedBatch
from loong_core.device.cpu import CpuDevice
from loong_core.device.protocol import HostCopies
from loong_core.errors import UserError
from loong_core.nn.decoder import Decoder
from loong_core.nn.moe.balance import take_load
from loong_core.nn.moe.choices import recorded_choices
from loong_core.nn.moe.config import MoEConfig
from loong_core.nn.parts import ALL_BLOCKS, NOTHING, Parts
from loong_core.nn.recompute import keep_less
from loong_core.parallel.context import ParallelContext

ONE = ParallelContext.single()
LENGTHS = [9, 30, 25]
DENSE = replace(PLAIN, blocks=PLAIN.blocks[:1] * 3)


def with_losses(config):
    """The mixture with auxiliary and z losses over the whole model, whose shares forward gathers for backward."""
    block = config.blocks[0]
    assert isinstance(block.feed_forward, MoEConfig)
    router = replace(block.feed_forward.router, aux_coefficient=0.3, aux_scope="model", z_coefficient=0.1)
    return replace(config, blocks=(replace(block, feed_forward=replace(block.feed_forward, router=router)),) * 3)


EXPERTS = with_losses(MIXTURE)


def built(config, **parts):
    torch.manual_seed(1)
    model = Decoder(config, ONE)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    keep_less([model], ONE, CpuDevice(), least_bytes=0, **parts)
    return model


def batch_of(lengths):
    ids = torch.randint(512, (sum(lengths) + 1,), generator=torch.Generator().manual_seed(2))
    return PackedBatch.from_lengths(ids[:-1], ids[1:], lengths)


def trained(config, **parts):
    """Losses, gradients and counts of experts after two microbatches."""
    model = built(config, **parts)
    losses = []
    for lengths in (LENGTHS, LENGTHS[::-1]):
        loss = model(batch_of(lengths))
        loss.sum().backward()
        losses.append(loss.detach())
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return losses, gradients, take_load([model], ONE) if config.mixtures else {}


CHOICES = {
    "full": {"recompute": ALL_BLOCKS},
    "two blocks": {"recompute": Parts(blocks=2)},
    "feed-forwards and one block": {"recompute": Parts(modules=("feed_forward", "layers.1"))},
    "the head and products": {"recompute": Parts(modules=("head", "attention.output", "norm"))},
    "offload": {"offload": ALL_BLOCKS},
    "offloaded inputs of recomputed blocks": {"recompute": ALL_BLOCKS, "offload": ALL_BLOCKS},
    "offload, attention recomputed": {"recompute": Parts(modules=("attention",)), "offload": Parts(blocks=2)},
}


@pytest.mark.parametrize("config", [DENSE, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("choice", CHOICES)
def test_losses_gradients_and_load_are_the_same_bit_for_bit(config, choice):
    losses, gradients, load = trained(config)
    same_losses, same_gradients, same_load = trained(config, **CHOICES[choice])
    assert all(torch.equal(one, other) for one, other in zip(losses, same_losses, strict=True))
    assert [name for name in gradients if not torch.equal(gradients[name], same_gradients[name])] == []
    assert load == same_load


def held_after_forward(model):
    """Bytes of distinct memory that autograd holds, parameters apart."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held, alive = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(batch_of(LENGTHS))
    return sum(held.values())


def test_a_recomputed_block_keeps_one_hidden_state():
    stream = sum(LENGTHS) * DENSE.hidden_size * 4

    def each_block(**parts):
        two = replace(DENSE, blocks=DENSE.blocks[:2])
        return held_after_forward(built(DENSE, **parts)) - held_after_forward(built(two, **parts))

    assert each_block(recompute=ALL_BLOCKS) == stream
    assert each_block() > 10 * stream


def test_random_numbers_of_the_forward_are_those_of_its_repetition():
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleDict({"0": torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))})
    x = torch.randn(16, 8)

    def gradient():
        torch.manual_seed(3)
        model.zero_grad()
        model.layers["0"](x).square().sum().backward()
        return model.layers["0"][0].weight.grad

    plain = gradient().clone()
    keep_less([model], ONE, CpuDevice(), recompute=ALL_BLOCKS)
    assert torch.equal(plain, gradient())


def test_nothing_is_kept_or_repeated_without_a_gradient():
    model = built(EXPERTS, recompute=ALL_BLOCKS, offload=ALL_BLOCKS)
    with torch.no_grad():
        model(batch_of(LENGTHS))
    assert next(iter(model.layers.children())).feed_forward.router.load.counts is None


def test_a_repeated_choice_of_experts_is_recorded_once():
    model = built(EXPERTS, recompute=ALL_BLOCKS)
    with recorded_choices([model], ONE) as recorded:
        model(batch_of(LENGTHS)).sum().backward()
    assert [len(forwards) for forwards in recorded.values()] == [1, 1, 1]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"recompute": Parts(modules=("feed_foward",))}, "recompute.modules: 'feed_foward' matches nothing; did you"),
        ({"offload": Parts(modules=("layers.7",))}, "offload.modules: 'layers.7' matches nothing"),
        (
            {"recompute": ALL_BLOCKS, "offload": Parts(modules=("layers.1.attention",))},
            "layers.1.attention is part of layers.1, which is recomputed",
        ),
    ],
)
def test_what_cannot_be_chosen_is_refused_with_the_nearest(parts, said):
    with pytest.raises(UserError, match=said.replace(".", r"\.")):
        built(DENSE, **parts)


def test_errors_of_a_component_name_its_section():
    with pytest.raises(UserError, match=r"^vision\.recompute\.modules: 'x'"):
        keep_less([Decoder(DENSE, ONE)], ONE, CpuDevice(), recompute=Parts(modules=("x",)), component="vision.")


def test_news_say_what_was_chosen_and_nothing_says_nothing():
    model = Decoder(DENSE, ONE)
    assert keep_less([model], ONE, CpuDevice(), recompute=NOTHING) == ""
    told = keep_less([model], ONE, CpuDevice(), recompute=Parts(modules=("feed_forward",)), offload=Parts(blocks=1))
    assert told == "recompute: 3 modules (modules feed_forward); offload: 1 module (1 block)"


class CountedCopies(HostCopies):
    """Copies, and how many bytes were taken where."""

    def __init__(self):
        self.out, self.back, self.sources = [], [], []

    def to_host(self, source):
        self.out.append(source.nbytes)
        self.sources.append(weakref.ref(source))
        return super().to_host(source)

    def to_device(self, source, device):
        self.back.append(source.nbytes)
        return super().to_device(source, device)


class CountingDevice(CpuDevice):
    def __init__(self):
        self.copies = CountedCopies()

    def host_copies(self):
        return self.copies


class Doubling(torch.autograd.Function):
    """Keeps what it makes, which nobody else holds."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * 2)
        return x + 0

    @staticmethod
    def backward(ctx, *grads):
        return grads[0] * ctx.saved_tensors[0]


class Doubles(torch.nn.Module):
    def forward(self, x):
        return Doubling.apply(x)


def chain(length):
    """A stage of so many modules, offloaded, and the device that counts."""
    stage, device = torch.nn.Module(), CountingDevice()
    stage.layers = torch.nn.ModuleDict({str(number): Doubles() for number in range(length)})
    keep_less([stage], ONE, device, offload=ALL_BLOCKS)
    return stage.layers.values(), device.copies


BIG = 1 << 19  # elements of float32: two MiB, above what stays


def test_what_is_kept_leaves_the_device_one_module_later_and_comes_back_once():
    layers, copies = chain(4)
    x = torch.ones(BIG, requires_grad=True)
    y = x
    for number, layer in enumerate(layers):
        y = layer(y)
        assert copies.out == [BIG * 4] * (number + 1)
        assert [source() is None for source in copies.sources] == [True] * number + [False]
    y.sum().backward()
    assert copies.back == [BIG * 4] * 3  # the last was still there
    assert torch.equal(x.grad, torch.full((BIG,), 16.0))


def test_small_tensors_and_parameters_stay():
    stage, device = torch.nn.Module(), CountingDevice()
    stage.layers = torch.nn.ModuleDict({"0": torch.nn.Linear(1024, 1024), "1": torch.nn.Linear(1024, 1)})
    keep_less([stage], ONE, device, offload=ALL_BLOCKS)
    x = torch.ones(8, 1024, requires_grad=True)  # its gradient needs the weight of 4 MiB, the weight's needs 32 KiB
    stage.layers["1"](stage.layers["0"](x)).sum().backward()
    assert device.copies.out == []


def test_two_views_of_a_memory_travel_once():
    stage, device = torch.nn.Module(), CountingDevice()

    class Halves(torch.nn.Module):
        def forward(self, x):
            left, right = (x * 1).chunk(2)
            return left * right

    stage.layers = torch.nn.ModuleDict({"0": Halves(), "1": Halves()})
    keep_less([stage], ONE, device, offload=ALL_BLOCKS)
    x = torch.randn(BIG * 4, requires_grad=True)
    stage.layers["1"](stage.layers["0"](x)).sum().backward()
    assert device.copies.out == [BIG * 16, BIG * 8]
    quarters = x.detach().chunk(4)
    assert torch.equal(x.grad[:BIG], quarters[1] * quarters[3] * quarters[2])


def test_nothing_is_held_after_a_backward_or_a_forward_that_is_given_up():
    layers, copies = chain(3)
    held = []
    to_host = copies.to_host

    def noted(source):
        copy = to_host(source)
        held.append(weakref.ref(copy))
        return copy

    copies.to_host = noted
    for ends in (True, False):
        y = torch.ones(BIG, requires_grad=True)
        for layer in layers:
            y = layer(y)
        if ends:
            y.sum().backward()
        del y
        gc.collect()
        assert [copy for copy in held if copy() is not None] == []
