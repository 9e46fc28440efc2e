"""The host processor as a device: the one every machine has, and the one most tests run on."""

from __future__ import annotations

import os
import platform
import time
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from loong_core.device.protocol import Availability, Capabilities, Device, MemoryFigures
from loong_core.errors import UserError
from loong_core.wording import counted

_MATMUL_SIZE = 768
_MATMUL_TRIALS = 8
_MATMUL_SECONDS = 1.0


class CpuEvent:
    """A `TimingEvent` of a device whose work has run as soon as it was issued."""

    def __init__(self) -> None:
        self.moment: float | None = None

    def record(self) -> None:
        """Note the time."""
        self.moment = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is pending on a CPU."""

    def query(self) -> bool:
        """Always true, as nothing is pending."""
        return True

    def elapsed_time(self, end_event: CpuEvent) -> float:
        """Milliseconds between two recorded events.

        Raises:
            RuntimeError: one of them was not recorded.
        """
        if self.moment is None or end_event.moment is None:
            raise RuntimeError("both events must be recorded before the time between them is known")
        return (end_event.moment - self.moment) * 1e3


class CpuDevice(Device):
    """All cores that torch uses in this process, with gloo between ranks."""

    name = "cpu"
    torch_type = "cpu"
    communication_backend = "gloo"

    def availability(self) -> Availability:
        """Always available."""
        return Availability(True, f"{processor_name()}, {counted(torch.get_num_threads(), 'thread')}")

    def bind(self, local_rank: int) -> torch.device:
        """Every rank shares the one host."""
        return torch.device("cpu")

    def memory(self) -> MemoryFigures:
        """Resident memory of this process and the machine's (or the container's) total."""
        status = _proc_status()
        return MemoryFigures(status["VmRSS"], max(status["VmHWM"], status["VmRSS"]), _total_memory())

    def reset_peak_memory(self) -> None:
        """Ask the kernel to count the process's peak anew; without effect where it refuses."""
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return

    def peak_flops(self, dtype: torch.dtype) -> float | None:
        """What a float32 matmul reaches with this process's threads, measured once and used for every dtype.

        A processor has no data-sheet figure that holds for a container's share of it. The figure is what torch's own
        matmul does here at its best, so a utilisation on CPU says how much of the step is spent as well as that.
        """
        return measured_matmul_flops(torch.get_num_threads())

    def capabilities(self) -> Capabilities:
        """bfloat16 runs everywhere (slowly on older processors)."""
        return Capabilities(bf16=True)

    def seed(self, seed: int) -> None:
        """Seed the host's generator."""
        torch.manual_seed(seed)

    def random_state(self) -> Tensor:
        """State of the host's generator."""
        return torch.get_rng_state()

    def set_random_state(self, state: Tensor) -> None:
        """Continue from the host generator's state."""
        expected = torch.get_rng_state().numel()
        if state.dtype != torch.uint8 or state.numel() != expected:
            raise UserError(
                f"a random state of {state.numel()} {state.dtype} elements is not one of the cpu device, which has "
                f"{expected} bytes; resume on the kind of device the checkpoint was written on"
            )
        torch.set_rng_state(state.cpu())

    def synchronize(self) -> None:
        """Nothing is pending on a CPU."""

    def event(self) -> CpuEvent:
        """An event that reads the host's clock."""
        return CpuEvent()


@lru_cache(maxsize=8)
def measured_matmul_flops(threads: int) -> float:
    """Operations a second of a square float32 matmul, with torch's `threads` (the cache's key).

    The best of as many trials as it takes until several in a row were no better: on a machine that others use too, most
    trials measure their share of it.
    """
    with torch.no_grad():
        left, right = torch.ones(_MATMUL_SIZE, _MATMUL_SIZE), torch.ones(_MATMUL_SIZE, _MATMUL_SIZE)
        product = left @ right
        best, tried, begun = float("inf"), 0, time.perf_counter()
        while tried < _MATMUL_TRIALS and time.perf_counter() - begun < _MATMUL_SECONDS:
            started = time.perf_counter()
            torch.mm(left, right, out=product)
            seconds = time.perf_counter() - started
            tried = 0 if seconds < 0.98 * best else tried + 1
            best = min(best, seconds)
    return 2.0 * _MATMUL_SIZE**3 / best


@lru_cache(maxsize=1)
def processor_name() -> str:
    """The processor's model as the kernel names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _proc_status() -> dict[str, int]:
    """`VmRSS` and `VmHWM` of this process in bytes."""
    figures = {"VmRSS": 0, "VmHWM": 0}
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return figures
    for line in lines:
        key, _, value = line.partition(":")
        if key in figures:
            figures[key] = int(value.split()[0]) * 1024
    return figures


@lru_cache(maxsize=1)
def _total_memory() -> int:
    """Bytes of memory this process may use: the machine's, or its control group's limit where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit_file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = Path(limit_file).read_text().strip()
        except OSError:
            continue
        if limit.isdigit():
            total = min(total, int(limit))
    return total
