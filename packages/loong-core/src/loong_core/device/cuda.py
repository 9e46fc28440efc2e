"""NVIDIA GPUs: the built-in `cuda` device, and what accelerators that pose as CUDA share with it."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from loong_core.device.nvml import first_visible_gpu
from loong_core.device.protocol import (
    Availability,
    Capabilities,
    Device,
    Hardware,
    HostCopies,
    HostCopy,
    MemoryFigures,
    TimingEvent,
)
from loong_core.errors import UserError

# Dense peaks from NVIDIA's data sheets, operations a second: (part of the device's name, {dtype: peak}). The first
# match counts, so a longer name stands before a shorter one. Data sheets that print figures "with sparsity" are halved.
# float32 is the rate of TF32 tensor cores where matmuls may use them; torch does not by default, hence the plain rate.
_BF16, _FP16, _FP32 = torch.bfloat16, torch.float16, torch.float32
_FP8_KINDS = (torch.float8_e4m3fn, torch.float8_e5m2)


def _rates(half: float, fp32: float, fp8: float | None = None) -> dict[torch.dtype, float]:
    """Rates by dtype, given in units of 1e12 a second."""
    rates = {_BF16: half * 1e12, _FP16: half * 1e12, _FP32: fp32 * 1e12}
    return rates if fp8 is None else rates | dict.fromkeys(_FP8_KINDS, fp8 * 1e12)


DENSE_PEAKS: tuple[tuple[str, dict[torch.dtype, float]], ...] = (
    ("GB300", _rates(2500, 80, 5000)),
    ("B300", _rates(2250, 75, 4500)),
    ("GB200", _rates(2500, 80, 5000)),
    ("B200", _rates(2250, 75, 4500)),
    ("B100", _rates(1750, 60, 3500)),
    ("GH200", _rates(989, 67, 1979)),
    ("H200 NVL", _rates(835, 60, 1671)),
    ("H200", _rates(989, 67, 1979)),
    ("H100 NVL", _rates(835, 60, 1671)),
    ("H100 PCIe", _rates(756, 51, 1513)),
    ("H100", _rates(989, 67, 1979)),
    ("H800 PCIe", _rates(756, 51, 1513)),
    ("H800", _rates(989, 67, 1979)),
    ("H20", _rates(148, 44, 296)),
    ("A100", _rates(312, 19.5)),
    ("A800", _rates(312, 19.5)),
    ("A40", _rates(149.7, 37.4)),
    ("A30", _rates(165, 10.3)),
    ("A10", _rates(125, 31.2)),
    ("L40S", _rates(362, 91.6, 733)),
    ("L40", _rates(181, 90.5, 362)),
    ("L20", _rates(119.5, 59.8, 239)),
    ("L4", _rates(121, 30.3, 242)),
    ("RTX 4090", _rates(165.2, 82.6, 330.3)),
    ("RTX 3090", _rates(71, 35.6)),
)


def dense_peak(device_name: str, dtype: torch.dtype) -> float | None:
    """Data-sheet peak of a dense matmul in `dtype`, operations a second, by the device's name; None if not listed."""
    words = f" {device_name.replace('-', ' ')} "
    for part, rates in DENSE_PEAKS:
        if f" {part} " in words:
            return rates.get(dtype)
    return None


class StreamedCopy(HostCopy):
    """A copy on a stream of its own, and the event that follows it there."""

    def __init__(self, copy: Tensor, done: torch.cuda.Event) -> None:
        super().__init__(copy)
        self._done = done

    def arrived(self) -> Tensor:
        """The copy, for which the current stream waits; the host does not."""
        torch.cuda.current_stream().wait_event(self._done)
        return self.copy


class StreamedCopies(HostCopies):
    """Copies on two streams, one a direction, from and to pinned memory, which torch's host allocator keeps."""

    def __init__(self) -> None:
        self._leaving, self._coming = torch.cuda.Stream(), torch.cuda.Stream()

    def to_host(self, source: Tensor) -> StreamedCopy:
        """Begin to copy to pinned memory."""
        copy = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        return _on(self._leaving, copy, source.detach())

    def to_device(self, source: Tensor, device: torch.device) -> StreamedCopy:
        """Begin to copy to new memory of the device."""
        copy = torch.empty(source.shape, dtype=source.dtype, device=device)
        copy.record_stream(self._coming)  # where nobody waits for it, its memory is not used again before it is written
        return _on(self._coming, copy, source)


def _on(stream: torch.cuda.Stream, copy: Tensor, source: Tensor) -> StreamedCopy:
    """Copy on a stream, after what the current one has queued."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        copy.copy_(source, non_blocking=True)
    done = torch.cuda.Event()
    done.record(stream)
    return StreamedCopy(copy, done)


class CudaLikeDevice(Device):
    """What every device has whose runtime answers `torch.cuda`: memory, random state, events, binding.

    Subclasses give a name, `availability`, `capabilities` and `peak_flops`.
    """

    torch_type = "cuda"
    communication_backend = "nccl"

    def bind(self, local_rank: int) -> torch.device:
        """Make GPU `local_rank` this process's current one."""
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise UserError(
                f"local rank {local_rank} needs {self.name} device number {local_rank}, but this machine shows "
                f"{count}; start at most as many ranks on a machine as it has devices"
            )
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)

    def memory(self) -> MemoryFigures:
        """Bytes held by tensors (not the allocator's cache) on the current GPU."""
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        return MemoryFigures(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), total)

    def reset_peak_memory(self) -> None:
        """Start the allocator's peak anew."""
        torch.cuda.reset_peak_memory_stats()

    def seed(self, seed: int) -> None:
        """Seed the host's and the current GPU's generators."""
        torch.manual_seed(seed)
        torch.cuda.manual_seed(seed)

    def random_state(self) -> Tensor:
        """The host generator's state followed by the current GPU's."""
        return torch.cat([torch.get_rng_state(), torch.cuda.get_rng_state().cpu()])

    def set_random_state(self, state: Tensor) -> None:
        """Continue from both generators' states."""
        host, own = torch.get_rng_state().numel(), torch.cuda.get_rng_state().numel()
        if state.dtype != torch.uint8 or state.numel() != host + own:
            raise UserError(
                f"a random state of {state.numel()} {state.dtype} elements is not one of the {self.name} device, "
                f"which has {host + own} bytes; resume on the kind of device the checkpoint was written on"
            )
        state = state.cpu()
        torch.set_rng_state(state[:host])
        torch.cuda.set_rng_state(state[host:])

    def synchronize(self) -> None:
        """Wait for the current GPU."""
        torch.cuda.synchronize()

    def event(self) -> TimingEvent:
        """A CUDA event that keeps time."""
        return torch.cuda.Event(enable_timing=True)

    def host_copies(self) -> StreamedCopies:
        """Copies on streams beside the current one."""
        return StreamedCopies()


class CudaDevice(CudaLikeDevice):
    """NVIDIA GPUs, with NCCL between ranks."""

    name = "cuda"

    def availability(self) -> Availability:
        """Whether torch is built for CUDA and sees a GPU."""
        if torch.version.cuda is None:
            return Availability(
                False, f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch"
            )
        if not torch.cuda.is_available():
            return Availability(
                False,
                f"torch (CUDA {torch.version.cuda}) sees no NVIDIA GPU; check that `nvidia-smi` lists one, that the "
                "driver is new enough, and that CUDA_VISIBLE_DEVICES does not hide it",
            )
        count = torch.cuda.device_count()
        return Availability(True, f"{count} GPU{'s' if count != 1 else ''}, CUDA {torch.version.cuda}")

    def hardware(self) -> Hardware | None:
        """The first GPU that is visible, as the driver's management library tells it."""
        return first_visible_gpu()

    def describe(self) -> str:
        """Names of the GPUs; unlike `availability` this starts the CUDA runtime."""
        if not self.availability().ok:
            return super().describe()
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        listed = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        return f"{self.name}: {listed}, CUDA {torch.version.cuda}"

    def peak_flops(self, dtype: torch.dtype) -> float | None:
        """NVIDIA's data-sheet figure for dense matmuls (see `DENSE_PEAKS`)."""
        return dense_peak(torch.cuda.get_device_name(), dtype)

    def capabilities(self) -> Capabilities:
        """By compute capability: bf16 from 8.0, fp8 from 8.9, block-scaled mxfp8 from 10.0."""
        version = torch.cuda.get_device_capability()
        fp8: set[str] = set()
        if version >= (8, 9):
            fp8 |= {"tensorwise", "rowwise"}
        if (9, 0) <= version < (10, 0):
            fp8 |= {"blockwise"}
        if version >= (10, 0):
            fp8 |= {"mxfp8"}
        return Capabilities(bf16=version >= (8, 0), fp8=frozenset(fp8), triton=version >= (7, 0), graphs=True)

    def environment_defaults(self) -> dict[str, str]:
        """`PYTORCH_ALLOC_CONF=expandable_segments:True`: less fragmentation where sequence lengths vary.

        Left alone where the user configures the allocator by its older name, `PYTORCH_CUDA_ALLOC_CONF`.
        """
        return {} if "PYTORCH_CUDA_ALLOC_CONF" in os.environ else {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
