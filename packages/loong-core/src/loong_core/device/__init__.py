"""The device seam: what runs, how it is found and chosen, and how megatron-core is answered where there is no CUDA."""

from loong_core.device.cuda import CudaLikeDevice
from loong_core.device.discovery import Found, Selection, apply_environment, discover, select
from loong_core.device.protocol import Availability, Capabilities, Device, Hardware, MemoryFigures, TimingEvent

__all__ = [
    "Availability",
    "Capabilities",
    "CudaLikeDevice",
    "Device",
    "Found",
    "Hardware",
    "MemoryFigures",
    "Selection",
    "TimingEvent",
    "apply_environment",
    "discover",
    "select",
]
