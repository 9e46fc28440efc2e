"""A stand-in for Kunlun's runtime: importing it makes torch on a CPU look as torch on two XPUs does.

As with the real one, `torch.cuda` counts and names XPUs, tensors put on `cuda` say that they are there, and the backend
`nccl` communicates. Tensors are host tensors with a mark; what is computed from a marked tensor is marked.
`leave()` undoes everything.
"""

import contextlib
import time
import weakref
from collections import Counter
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICES = 2
MEMORY = 64 * 2**30
HOST = torch.device("cpu")
DEVICE_OF = torch.Tensor.device.__get__
IS_CUDA = torch.Tensor.is_cuda.__get__


class Memory:
    """Which tensors are on an XPU, and how many bytes they hold."""

    def __init__(self):
        self.tensors = {}
        self.users = Counter()
        self.allocated = 0
        self.peak = 0

    def holds(self, tensor):
        return id(tensor) in self.tensors

    def take(self, tensor):
        """Mark a tensor as being on the XPU."""
        if isinstance(tensor, torch.Tensor) and id(tensor) not in self.tensors:
            storage = tensor.untyped_storage()
            block, key = (storage.data_ptr(), storage.nbytes()), id(tensor)
            self.tensors[key] = weakref.ref(tensor, lambda _: self.give_back(key, block))
            self.users[block] += 1
            self.allocated += block[1] if self.users[block] == 1 else 0
            self.peak = max(self.peak, self.allocated)
        return tensor

    def give_back(self, key, block):
        del self.tensors[key]
        self.users[block] -= 1
        self.allocated -= block[1] if self.users[block] == 0 else 0


def means_xpu(value):
    return (isinstance(value, torch.device) and value.type == "cuda") or (
        isinstance(value, str) and value.startswith("cuda")
    )


def means_host(value):
    return (isinstance(value, torch.device) and value.type == "cpu") or (isinstance(value, str) and value == "cpu")


class LooksLikeXpu(TorchFunctionMode):
    """Keeps the marks: what is asked for on `cuda`, or computed from what is there, is there."""

    def __init__(self, memory):
        super().__init__()
        self.memory = memory

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func == DEVICE_OF:
            return torch.device("cuda", CUDA.current) if self.memory.holds(args[0]) else func(*args)
        if func == IS_CUDA:
            return self.memory.holds(args[0])
        if func is torch.device:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if func in (torch.Tensor.cuda, torch.Tensor.cpu):
            return self.moved(args[0], args[0], name == "cuda")
        if func is torch.mm and "out_dtype" in kwargs:  # CUDA's alone; its products are those of the wider dtype
            args, kwargs = [each.to(kwargs["out_dtype"]) for each in args], {}
            return self.memory.take(func(*args))
        leaves = tree_leaves((args, kwargs))
        to_xpu, to_host = any(map(means_xpu, leaves)), any(map(means_host, leaves))
        given = tree_map(lambda value: HOST if means_xpu(value) else value, (args, kwargs))
        result = func(*given[0], **given[1])
        if func is torch.Tensor.to:
            like = args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else args[0]
            return self.moved(args[0], result, to_xpu or (not to_host and self.memory.holds(like)))
        in_place = name.endswith("_") and not name.endswith("__")
        if in_place or to_host or "out" in kwargs or not (to_xpu or any(map(self.memory.holds, leaves))):
            return result
        return tree_map(self.memory.take, result)

    def moved(self, source, result, to_xpu):
        """`result`, which may be `source` itself, on the wanted side; a copy where it changes sides."""
        if result is source and self.memory.holds(source) != to_xpu:
            result = source.clone()
        return self.memory.take(result) if to_xpu else result


class Event:
    def __init__(self, enable_timing=False):
        self.moment = None

    def record(self, stream=None):
        self.moment = time.perf_counter()

    def synchronize(self):
        pass

    def query(self):
        return True

    def elapsed_time(self, end_event):
        return (end_event.moment - self.moment) * 1e3


class Cuda:
    """What `torch.cuda` answers with."""

    def __init__(self, memory):
        self.current = 0
        self.memory = memory
        self.generator = torch.Generator()

    def answers(self):
        def set_device(device):
            self.current = device if isinstance(device, int) else torch.device(device).index

        def reset_peak():
            self.memory.peak = self.memory.allocated

        return {
            "is_available": lambda: True,
            "device_count": lambda: DEVICES,
            "current_device": lambda: self.current,
            "set_device": set_device,
            "get_device_name": lambda device=None: "P800 OAM (emulated)",
            "get_device_capability": lambda device=None: (8, 0),
            "get_device_properties": lambda device=None: SimpleNamespace(total_memory=MEMORY),
            "memory_allocated": lambda device=None: self.memory.allocated,
            "max_memory_allocated": lambda device=None: self.memory.peak,
            "reset_peak_memory_stats": lambda device=None: reset_peak(),
            "manual_seed": self.generator.manual_seed,
            "get_rng_state": lambda device=None: self.generator.get_state()[:16].clone(),
            "set_rng_state": lambda state, device=None: None,
            "synchronize": lambda device=None: None,
            "empty_cache": lambda: None,
            "Event": Event,
        }


def served_by_gloo(function):
    """A `torch.distributed` function that takes a backend's name, where BKCL's work is done by gloo."""

    def serve(backend=None, *args, **kwargs):
        return function("gloo" if backend is not None and "nccl" in backend else backend, *args, **kwargs)

    return serve


MEMORY_OF_XPU = Memory()
CUDA = Cuda(MEMORY_OF_XPU)
_UNDO = contextlib.ExitStack()


def _replace(owner, name, value):
    _UNDO.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


for _name, _answer in CUDA.answers().items():
    _replace(torch.cuda, _name, _answer)
_replace(dist, "init_process_group", served_by_gloo(dist.init_process_group))
_UNDO.enter_context(LooksLikeXpu(MEMORY_OF_XPU))


def leave():
    """Make torch as it was."""
    _UNDO.close()
