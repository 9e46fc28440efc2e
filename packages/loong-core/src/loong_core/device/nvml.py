"""Name and memory of an NVIDIA GPU from its management library, which starts no CUDA runtime and takes no memory.

The process that checks a run and starts its ranks asks before any of them has the GPU.
"""

from __future__ import annotations

import ctypes
import os

from loong_core.device.protocol import Hardware

_NAME_BYTES = 96
_MEMORY_VERSION = 2 << 24


class _Memory(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def first_visible_gpu() -> Hardware | None:
    """The first GPU that CUDA_VISIBLE_DEVICES shows; None where there is none, or no library to ask."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if library.nvmlInit_v2():
        return None
    try:
        return _read(library)
    finally:
        library.nvmlShutdown()


def _read(library: ctypes.CDLL) -> Hardware | None:
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    handle = ctypes.c_void_p()
    if shown.isdecimal():
        failed = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(shown)), ctypes.byref(handle))
    else:
        failed = library.nvmlDeviceGetHandleByUUID(shown.encode(), ctypes.byref(handle))
    if failed:
        return None
    name = ctypes.create_string_buffer(_NAME_BYTES)
    memory = _Memory(version=ctypes.sizeof(_Memory) | _MEMORY_VERSION)
    if library.nvmlDeviceGetName(handle, name, ctypes.c_uint(_NAME_BYTES)):
        return None
    if library.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory)):
        return None
    return Hardware(name.value.decode(), memory.total - memory.reserved)
