"""Kunlun XPU as a device of the project."""

from __future__ import annotations

import torch

from loong_core.device import Availability, Capabilities, CudaLikeDevice
from loong_xpu import runtime
from loong_xpu.environment import DEFAULTS


class XpuDevice(CudaLikeDevice):
    """XPUs behind torch's CUDA calls, with BKCL, which answers to the name `nccl`, between ranks."""

    name = "xpu"
    answers_for = frozenset({"cuda"})

    def availability(self) -> Availability:
        """Whether Kunlun's runtime is installed, loads, and shows an XPU."""
        missing = runtime.why_unusable()
        if missing is not None:
            return Availability(False, missing)
        count = torch.cuda.device_count()
        return Availability(True, f"{count} XPU{'s' if count != 1 else ''}, torch {torch.__version__}")

    def peak_flops(self, dtype: torch.dtype) -> float | None:
        """Unknown: Kunlun publishes no data sheet with dense rates, so runs report no utilisation."""
        return None

    def capabilities(self) -> Capabilities:
        """bf16. No fp8: the vendor's plug-in accepts it but computes without it. No Triton, no TransformerEngine."""
        return Capabilities(bf16=True)

    def environment_defaults(self) -> dict[str, str]:
        """See `loong_xpu.environment`, which says what each variable does."""
        return {variable.name: variable.value for variable in DEFAULTS}

    def describe(self) -> str:
        """Names of the XPUs, where there are some."""
        if not self.availability().ok:
            return super().describe()
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        listed = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        return f"{self.name}: {listed}, behind torch's CUDA calls"
