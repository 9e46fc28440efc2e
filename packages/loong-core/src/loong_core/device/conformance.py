"""What every device must do, as checks that a device's author runs.

Each check takes a device and raises `AssertionError` with what it expected and what it got. In a plug-in's tests:

    import pytest
    from loong_core.device import conformance

    @pytest.mark.parametrize("check", conformance.CHECKS, ids=str)
    def test_device_conforms(check):
        check(MyDevice())

`CHECKS` need the device's runtime. Where there is none, run `CHECKS_WITHOUT_RUNTIME`: what a device must be able to say
anywhere. The ops that a registry serves on the device have checks of their own: `loong_kernels.conformance.checks`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as distributed
from torch._C._distributed_c10d import HashStore

from loong_core.device.protocol import Availability, Capabilities, Device, TimingEvent
from loong_core.errors import UserError

_ALLOCATION = 64 * 2**20


@dataclass(frozen=True)
class Check:
    """One thing that a device must do; call it with the device."""

    run: Callable[[Device], None]

    @property
    def name(self) -> str:
        """The check's name, words with spaces."""
        return self.run.__name__.replace("_", " ")

    def __call__(self, device: Device) -> None:
        """Run the check.

        Raises:
            AssertionError: the device does otherwise.
        """
        self.run(device)

    def __str__(self) -> str:
        return self.name


def failures(device: Device) -> dict[str, str]:
    """Run every check that applies to the device here; message of each that fails, by name."""
    checks = CHECKS if device.availability().ok else CHECKS_WITHOUT_RUNTIME
    found: dict[str, str] = {}
    for check in checks:
        try:
            check(device)
        except Exception as error:
            found[check.name] = f"{type(error).__name__}: {error}"
    return found


def _refusal(attempt: Callable[[], object]) -> str | None:
    """Message of the `UserError` that `attempt` ends with, None if it goes through."""
    try:
        attempt()
    except UserError as error:
        return str(error)
    return None


def names_are_words(device: Device) -> None:
    """Its name can be written in a run file, and torch knows its type."""
    assert re.fullmatch(r"[a-z][a-z0-9_]*", device.name), f"name {device.name!r} is not a lower-case word"
    torch.device(device.torch_type)
    assert device.communication_backend, "no communication backend is named"
    assert device.name not in device.answers_for, f"{device.name} lists itself in answers_for"
    assert device.is_cuda_like == (device.torch_type == "cuda"), "is_cuda_like contradicts torch_type"


def availability_is_told_with_a_reason(device: Device) -> None:
    """`availability` answers, twice the same, and never without words."""
    answer = device.availability()
    assert isinstance(answer, Availability), f"availability() returned a {type(answer).__name__}"
    assert answer.reason.strip(), "availability() gives no reason"
    assert "\n" not in answer.reason, "the reason has more than one line"
    assert device.availability() == answer, f"asked again, availability() says {device.availability()}"


def environment_defaults_are_words_and_change_nothing(device: Device) -> None:
    """Defaults are told, not set."""
    before = dict(os.environ)
    defaults = device.environment_defaults()
    assert dict(os.environ) == before, "environment_defaults() changed the environment"
    wrong = {key: value for key, value in defaults.items() if not isinstance(key, str) or not isinstance(value, str)}
    assert not wrong, f"not strings: {wrong}"


def description_is_one_line_with_its_name(device: Device) -> None:
    """`describe` is for people."""
    line = device.describe()
    assert device.name in line, f"describe() gives {line!r}, without its name"
    assert "\n" not in line, f"describe() gives more than one line: {line!r}"


def binding_gives_a_torch_device_of_its_type(device: Device) -> None:
    """Tensors can be put on the bound device and come back unchanged."""
    bound = device.bind(0)
    assert isinstance(bound, torch.device), f"bind(0) returned a {type(bound).__name__}"
    assert bound.type == device.torch_type, f"bind(0) gave type {bound.type!r}, torch_type is {device.torch_type!r}"
    there = torch.arange(5, device=bound)
    assert there.device.type == device.torch_type, f"a tensor put on {bound} is on {there.device}"
    assert there.cpu().tolist() == [0, 1, 2, 3, 4], "a tensor came back changed"


def binding_beyond_the_last_device_is_refused(device: Device) -> None:
    """Too many ranks on a machine are an error of the user's, told in words."""
    if device.bind(0).index is None:
        return
    message = _refusal(lambda: device.bind(4096))
    assert message is not None, "bind(4096) gave a device"
    assert "4096" in message, f"the message does not say which rank: {message}"


def memory_figures_follow_an_allocation(device: Device) -> None:
    """What is allocated is seen, its peak stays, and a reset forgets it."""
    bound = device.bind(0)
    device.synchronize()
    device.reset_peak_memory()
    before = device.memory()
    block = torch.ones(_ALLOCATION, dtype=torch.uint8, device=bound)
    device.synchronize()
    during = device.memory()
    del block
    after = device.memory()
    device.reset_peak_memory()
    reset = device.memory()
    for figures in (before, during, after, reset):
        assert 0 <= figures.allocated <= figures.peak <= figures.total, f"out of order: {figures}"
    grown = during.allocated - before.allocated
    assert grown >= _ALLOCATION // 2, f"{_ALLOCATION} bytes were allocated, allocated grew by {grown}"
    kept = after.peak - before.allocated
    assert kept >= _ALLOCATION // 2, f"the peak is {kept} above the start after {_ALLOCATION} bytes came and went"
    assert reset.peak < after.peak, f"the peak is {reset.peak} after a reset, as before it"


def peak_flops_are_positive_or_unknown(device: Device) -> None:
    """A rate that utilisation can be divided by, the same each time."""
    device.bind(0)
    for dtype in (torch.float32, torch.bfloat16):
        rate = device.peak_flops(dtype)
        assert rate is None or rate > 0, f"peak_flops({dtype}) is {rate}"
        assert device.peak_flops(dtype) == rate, f"asked again, peak_flops({dtype}) differs"


def capabilities_are_true(device: Device) -> None:
    """A device that says bf16 multiplies in bf16."""
    bound = device.bind(0)
    able = device.capabilities()
    assert isinstance(able, Capabilities), f"capabilities() returned a {type(able).__name__}"
    unknown = able.fp8 - {"tensorwise", "rowwise", "blockwise", "mxfp8"}
    assert not unknown, f"unknown fp8 kinds: {sorted(unknown)}"
    if able.bf16:
        product = torch.full((4, 4), 0.5, device=bound).bfloat16() @ torch.ones(4, 4, device=bound).bfloat16()
        assert product.float().cpu().tolist() == [[2.0] * 4] * 4, "a bf16 matmul gave a wrong product"


def arithmetic_and_gradients_equal_the_hosts(device: Device) -> None:
    """A small layer's output and gradients agree with float64 on the host to float32's rounding."""
    bound = device.bind(0)
    generator = torch.Generator().manual_seed(0)
    inputs, weight = (torch.randn(8, 8, generator=generator, dtype=torch.float64) for _ in range(2))

    def run(where: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
        x = inputs.to(where, dtype).requires_grad_()
        w = weight.to(where, dtype).requires_grad_()
        y = torch.nn.functional.silu(x @ w).softmax(-1)
        gradients = torch.autograd.grad(y.pow(2).sum(), (x, w))
        return [each.detach().cpu().double() for each in (y, *gradients)]

    for name, ours, expected in zip(
        ("output", "gradient of the input", "gradient of the weight"),
        run(bound, torch.float32),
        run(torch.device("cpu"), torch.float64),
        strict=True,
    ):
        off = (ours - expected).abs().max().item()
        assert off < 1e-4, f"{name} differs by {off:.2e} from float64 on the host"


def a_seed_repeats_the_numbers(device: Device) -> None:
    """Host and device draw the same numbers again after the same seed, and others after another."""
    bound = device.bind(0)

    def draw(seed: int) -> list[list[float]]:
        device.seed(seed)
        return [torch.rand(8).tolist(), torch.rand(8, device=bound).cpu().tolist()]

    first = draw(5)
    assert draw(5) == first, "the same seed gave other numbers"
    assert all(a != b for a, b in zip(draw(6), first, strict=True)), "another seed gave the same numbers"


def a_random_state_continues_the_numbers(device: Device) -> None:
    """A state taken between two draws gives the second draw again, dropout's mask included."""
    bound = device.bind(0)

    def draw() -> list[list[float]]:
        mask = torch.nn.functional.dropout(torch.ones(32, device=bound), 0.5)
        return [torch.rand(8).tolist(), torch.rand(8, device=bound).cpu().tolist(), mask.cpu().tolist()]

    device.seed(7)
    draw()
    state = device.random_state()
    assert state.dtype == torch.uint8, f"random_state() is {state.dtype}"
    assert state.device.type == "cpu", f"random_state() is on {state.device}, not on the host"
    expected = draw()
    device.seed(8)
    device.set_random_state(state)
    assert draw() == expected, "after set_random_state() the numbers differ"


def a_foreign_random_state_is_refused(device: Device) -> None:
    """A state of another kind of device is an error of the user's, told in words."""
    device.bind(0)
    message = _refusal(lambda: device.set_random_state(torch.zeros(3, dtype=torch.uint8)))
    assert message is not None, "set_random_state() took a state of three bytes"


def events_keep_time(device: Device) -> None:
    """The time between two events is there once the device has passed them."""
    bound = device.bind(0)
    start, end = device.event(), device.event()
    assert isinstance(start, TimingEvent), f"event() returned a {type(start).__name__} without a TimingEvent's methods"
    start.record()
    torch.mm(torch.ones(64, 64, device=bound), torch.ones(64, 64, device=bound))
    end.record()
    end.synchronize()
    device.synchronize()
    assert end.query(), "an event that was waited for has not passed"
    assert start.elapsed_time(end) >= 0, "time runs backwards"


def ranks_can_communicate(device: Device) -> None:
    """A process group of one rank with the device's backend sums, gathers and scatters tensors on the device.

    Skips itself where the process has a default group already.
    """
    if distributed.is_initialized():
        return
    bound = device.bind(0)
    distributed.init_process_group(
        device.communication_backend,
        store=HashStore(),
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=60),
    )
    try:
        values = torch.arange(4.0, device=bound)
        distributed.all_reduce(values)
        gathered = torch.empty_like(values)
        distributed.all_gather_into_tensor(gathered, values)
        scattered = torch.empty_like(values)
        distributed.reduce_scatter_tensor(scattered, values)
        device.synchronize()
        for name, result in (("all_reduce", values), ("all_gather", gathered), ("reduce_scatter", scattered)):
            assert result.cpu().tolist() == [0, 1, 2, 3], f"{name} over one rank changed the values"
    finally:
        distributed.destroy_process_group()


CHECKS_WITHOUT_RUNTIME: tuple[Check, ...] = tuple(
    Check(run)
    for run in (
        names_are_words,
        availability_is_told_with_a_reason,
        environment_defaults_are_words_and_change_nothing,
        description_is_one_line_with_its_name,
    )
)
"""What a device does on any machine."""

CHECKS: tuple[Check, ...] = CHECKS_WITHOUT_RUNTIME + tuple(
    Check(run)
    for run in (
        binding_gives_a_torch_device_of_its_type,
        binding_beyond_the_last_device_is_refused,
        memory_figures_follow_an_allocation,
        peak_flops_are_positive_or_unknown,
        capabilities_are_true,
        arithmetic_and_gradients_equal_the_hosts,
        a_seed_repeats_the_numbers,
        a_random_state_continues_the_numbers,
        a_foreign_random_state_is_refused,
        events_keep_time,
        ranks_can_communicate,
    )
)
"""What a device does where its runtime is."""
