"""Answers for megatron-core's hard-coded CUDA calls on a device without CUDA.

megatron-core 0.19 asks `torch.cuda` for the current device, streams and random state, allocates with `device="cuda"`
and sorts parameters by the name `torch.cuda.FloatTensor`. Inside `answering(device)` each of its modules listed in
`MODULES` sees, under its global name `torch`, a view of torch in which the names of `ANSWERS` are answered for the CPU;
everything else is torch itself. torch is not changed: the model's own code, other threads and `torch.compile` see no
difference, and since the view is bound to megatron's modules and not to a thread or a torch-function mode, it holds
just as well in autograd hooks, in `Function.backward`, in recomputation and in threads. Tensor methods cannot be seen
through a view; the few that megatron calls look at who calls them and answer only megatron.

`ANSWERS` is the one table. An answer is there because a named function asks for it, and is tested by running that
function with and without it; a test also reads `MODULES`' source and fails on a CUDA name that is neither answered nor
listed as `UNREACHED` with its reason, so that a new megatron-core cannot ask for more unnoticed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from loong_core.device.protocol import Device

MODULES = (
    "megatron.core.utils",
    "megatron.core.timers",
    "megatron.core.distributed.distributed_data_parallel",
    "megatron.core.distributed.param_and_grad_buffer",
    "megatron.core.distributed.finalize_model_grads",
    "megatron.core.optimizer",
    "megatron.core.optimizer.clip_grads",
    "megatron.core.optimizer.distrib_optimizer",
    "megatron.core.optimizer.grad_scaler",
    "megatron.core.optimizer.optimizer",
    "megatron.core.pipeline_parallel.bridge_communicator",
    "megatron.core.pipeline_parallel.p2p_communication",
    "megatron.core.pipeline_parallel.schedules",
    "megatron.core.pipeline_parallel.utils",
    "megatron.core.tensor_parallel.data",
    "megatron.core.tensor_parallel.mappings",
    "megatron.core.tensor_parallel.random",
    "megatron.core.tensor_parallel.utils",
)
"""The modules of megatron-core that the project drives and that ask for CUDA. Others are not answered."""

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Answer:
    """What megatron-core hears when it asks for one CUDA name.

    Attributes:
        name: the name asked for: `torch...` as seen from a megatron module, `Tensor.method`, or the full name of a
            megatron function that is replaced.
        reply: what it gets; for `Tensor.method`, a function of the method it stands before.
        asked_by: who asks, as `file: function` below `megatron/core`.
    """

    name: str
    reply: Any
    asked_by: tuple[str, ...]


class Stream:
    """A queue of work on a device where work has run as soon as it is issued: there is never anything to wait for."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = CPU

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """One priority."""
        return (0, 0)

    def wait_stream(self, stream: Any) -> None:
        """Its work has run."""

    def wait_event(self, event: Any) -> None:
        """It has passed."""

    def synchronize(self) -> None:
        """All work has run."""


def _cpu_for_cuda(device: Any) -> Any:
    """The CPU where `device` means some CUDA device, else `device` itself."""
    if isinstance(device, str):
        return CPU if device.startswith("cuda") else device
    if isinstance(device, torch.device):
        return CPU if device.type == "cuda" else device
    return device


def _factory(create: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A tensor factory that puts on the CPU what is asked for on CUDA."""

    @functools.wraps(create)
    def on_cpu(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        return create(*args, device=_cpu_for_cuda(device), **kwargs)

    return on_cpu


def _autocast(device_type: str, *args: Any, **kwargs: Any) -> torch.autocast:
    """`torch.autocast`; asked for CUDA on a CPU the real one would warn and do nothing."""
    return torch.autocast("cpu" if device_type == "cuda" else device_type, *args, **kwargs)


def _get_state(device: Any = None, clone: bool = False, graph_safe: bool = False) -> Any:
    """State of the host's generator; with `graph_safe`, a generator as CUDA's graph-safe calls give."""
    if graph_safe:
        generator = torch.default_generator
        return generator.clone_state() if clone else generator
    return torch.get_rng_state()


def _set_state(new_state: Any, device: Any = -1, graph_safe: bool = False) -> None:
    """Set the host generator's state from what `_get_state` gave."""
    torch.set_rng_state(new_state.get_state() if graph_safe else new_state)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """An order to wait or to free, which on a CPU has nothing to do."""


def _asked_by_megatron() -> bool:
    """Whether the caller of the calling tensor method is megatron-core."""
    return sys._getframe(2).f_globals.get("__name__", "").startswith("megatron.core")


def _tensor_type(method: Callable[..., Any]) -> Callable[..., Any]:
    """`tensor.type()` names a CUDA type."""

    @functools.wraps(method)
    def type(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        if args or kwargs or not _asked_by_megatron():
            return result
        return result.replace("torch.", "torch.cuda.", 1)

    return type


def _tensor_cuda(method: Callable[..., Any]) -> Callable[..., Any]:
    """`tensor.cuda()` is the tensor itself, as it is for one already there."""

    @functools.wraps(method)
    def cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self if _asked_by_megatron() else method(self, *args, **kwargs)

    return cuda


def _tensor_pin_memory(method: Callable[..., Any]) -> Callable[..., Any]:
    """`tensor.pin_memory()` is a copy: megatron takes it of memory that it frees next."""

    @functools.wraps(method)
    def pin_memory(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.clone() if _asked_by_megatron() else method(self, *args, **kwargs)

    return pin_memory


def _tensor_record_stream(method: Callable[..., Any]) -> Callable[..., Any]:
    """`tensor.record_stream(stream)` has nothing to hold back."""

    @functools.wraps(method)
    def record_stream(self: torch.Tensor, stream: Any) -> None:
        if not _asked_by_megatron():
            method(self, stream)

    return record_stream


ANSWERS: tuple[Answer, ...] = (
    Answer(
        "torch.cuda.current_device",
        lambda: CPU,
        (
            "distributed/param_and_grad_buffer.py: _ParamAndGradBuffer.__init__ (gradient and parameter buffers)",
            "distributed/distributed_data_parallel.py: DistributedDataParallel.__init__",
            "optimizer/distrib_optimizer.py: DistributedOptimizer.load_state_dict, get_parameter_state_dp_zero",
            "optimizer/optimizer.py: ChainedOptimizer.get_loss_scale",
            "pipeline_parallel/p2p_communication.py: P2PCommunicator._communicate, _communicate_shapes",
            "pipeline_parallel/bridge_communicator.py: BridgeCommunicator (receive buffers)",
            "tensor_parallel/mappings.py: gather, reduce-scatter and all-to-all, in forward and Function.backward",
            "tensor_parallel/utils.py: split_tensor_into_1d_equal_chunks, gather_split_1d_tensor",
            "utils.py: GlobalMemoryBuffer.get_tensor",
        ),
    ),
    Answer(
        "torch.zeros",
        _factory(torch.zeros),
        (
            "pipeline_parallel/schedules.py: forward_backward_* (total_num_tokens)",
            "optimizer/clip_grads.py: get_grad_norm_fp32, clip_grad_by_total_norm_fp32, count_zeros_fp32",
        ),
    ),
    Answer(
        "torch.tensor",
        _factory(torch.tensor),
        (
            "optimizer/optimizer.py: MixedPrecisionOptimizer.__init__, FP32Optimizer.__init__, has_grad_norm_group",
            "optimizer/grad_scaler.py: MegatronGradScaler.__init__, DynamicGradScaler.__init__",
            "optimizer/clip_grads.py: get_grad_norm_fp32 (infinity norm)",
            "utils.py: local_multi_tensor_l2_norm",
            "tensor_parallel/data.py: _build_key_size_numel_dictionaries",
        ),
    ),
    Answer("torch.autocast", _autocast, ("pipeline_parallel/schedules.py: forward_step (config.enable_autocast)",)),
    Answer(
        "torch.cuda.Stream",
        Stream,
        (
            "distributed/distributed_data_parallel.py: DistributedDataParallel.__init__ (several optimizer instances)",
            "pipeline_parallel/utils.py: set_streams",
        ),
    ),
    Answer(
        "torch.cuda.current_stream",
        lambda device=None: Stream(),
        (
            "distributed/param_and_grad_buffer.py: _ParamAndGradBucketGroup.start_grad_sync, also from autograd hooks",
            "distributed/param_and_grad_buffer.py: _ParamAndGradBucketGroup.finish_grad_sync",
            "pipeline_parallel/utils.py: get_comp_stream",
        ),
    ),
    Answer(
        "torch.cuda.synchronize",
        _nothing,
        (
            "pipeline_parallel/p2p_communication.py: P2PCommunicator._communicate, _communicate_shapes",
            "distributed/distributed_data_parallel.py: offload_grad_buffers, restore_grad_buffers",
            "timers.py: Timer.start, Timer.stop",
        ),
    ),
    Answer(
        "torch.cuda.manual_seed",
        torch.manual_seed,
        ("tensor_parallel/random.py: model_parallel_cuda_manual_seed, CudaRNGStatesTracker.add",),
    ),
    Answer(
        "torch.cuda.get_rng_state",
        _get_state,
        ("tensor_parallel/random.py: CudaRNGStatesTracker.add",),
    ),
    Answer(
        "megatron.core.tensor_parallel.random._get_cuda_rng_state",
        _get_state,
        ("tensor_parallel/random.py: CudaRNGStatesTracker.fork, CheckpointFunction (recomputation)",),
    ),
    Answer(
        "megatron.core.tensor_parallel.random._set_cuda_rng_state",
        _set_state,
        ("tensor_parallel/random.py: CudaRNGStatesTracker.fork, CheckpointFunction.backward (recomputation)",),
    ),
    Answer(
        "torch.cuda.nvtx.range_push", _nothing, ("utils.py: nvtx_range_push (profiling, torch built without CUDA)",)
    ),
    Answer("torch.cuda.nvtx.range_pop", _nothing, ("utils.py: nvtx_range_pop (profiling, torch built without CUDA)",)),
    Answer(
        "Tensor.type",
        _tensor_type,
        (
            "optimizer/distrib_optimizer.py: DistributedOptimizer.__init__, _build_model_and_main_param_groups",
            "optimizer/optimizer.py: Float16OptimizerWithFloat16Params.__init__",
            "optimizer/clip_grads.py: clip_grad_by_total_norm_fp32",
        ),
    ),
    Answer(
        "Tensor.cuda",
        _tensor_cuda,
        (
            "optimizer/distrib_optimizer.py: DistributedOptimizer.get_parameter_state_dp_zero",
            "optimizer/grad_scaler.py: DynamicGradScaler.load_state_dict",
            "optimizer/optimizer.py: MegatronOptimizer.restore_from_cpu",
            "tensor_parallel/data.py: broadcast_data",
            "utils.py: check_param_hashes_across_dp_replicas",
        ),
    ),
    Answer(
        "Tensor.pin_memory",
        _tensor_pin_memory,
        ("distributed/param_and_grad_buffer.py: _ParamAndGradBuffer.offload_to_cpu",),
    ),
    Answer(
        "Tensor.record_stream",
        _tensor_record_stream,
        ("pipeline_parallel/utils.py: ScheduleNode._forward, ScheduleNode._backward",),
    ),
)
"""The table of answers."""

UNREACHED: dict[str, str] = {
    "torch.cuda.is_available": "answers False by itself",
    "torch.cuda.empty_cache": "does nothing by itself where CUDA was never started",
    "torch.cuda.stream": "does nothing by itself where CUDA was never started",
    "torch.cuda.CUDAGraph": "tensor_parallel/random.py asks for it with use_cudagraphable_rng, which needs CUDA graphs",
    "torch.cuda.Event": "an annotation, and utils.StragglerDetector, which keeps time itself without CUDA",
    "torch.cuda.default_generators": "only in _get_cuda_rng_state and _set_cuda_rng_state, which are replaced",
    "torch.cuda.random.get_rng_state": "only in _get_cuda_rng_state, which is replaced",
    "torch.device": "only in _get_cuda_rng_state and _set_cuda_rng_state, which are replaced",
    "torch.cuda.temperature": "utils.StragglerDetector reads sensors only where CUDA is available",
    "torch.cuda.power_draw": "utils.StragglerDetector reads sensors only where CUDA is available",
    "torch.cuda.utilization": "utils.StragglerDetector reads sensors only where CUDA is available",
    "torch.cuda.clock_rate": "utils.StragglerDetector reads sensors only where CUDA is available",
}
"""CUDA names in the source of `MODULES` that need no answer, and why."""


class _View(ModuleType):
    """A module as another module sees it: some names are answered, the rest is the real module's."""

    def __init__(self, real: ModuleType, replies: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        self._real = real
        below: dict[str, dict[str, Any]] = {}
        for name, reply in replies.items():
            head, _, rest = name.partition(".")
            if rest:
                below.setdefault(head, {})[rest] = reply
            else:
                setattr(self, head, reply)
        for head, inner in below.items():
            setattr(self, head, _View(getattr(real, head), inner))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Answering:
    """How many callers are inside, and how to undo what the first of them put in place."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.undo = contextlib.ExitStack()

    def enter(self, answers: tuple[Answer, ...]) -> None:
        with self.lock:
            if self.depth == 0:
                self._install(answers)
            self.depth += 1

    def leave(self) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                self.undo.close()

    def _install(self, answers: tuple[Answer, ...]) -> None:
        """Put every answer in its place; on failure nothing stays."""
        with contextlib.ExitStack() as undo:
            seen = _View(torch, {each.name[6:]: each.reply for each in answers if each.name.startswith("torch.")})
            for name in MODULES:
                module = importlib.import_module(name)
                if module.__dict__.get("torch") is torch:
                    self._replace(undo, module, "torch", seen)
            for each in answers:
                owner, _, attribute = each.name.rpartition(".")
                if owner == "Tensor":
                    self._replace(undo, torch.Tensor, attribute, each.reply(getattr(torch.Tensor, attribute)))
                elif not each.name.startswith("torch."):
                    self._replace(undo, importlib.import_module(owner), attribute, each.reply)
            self.undo = undo.pop_all()

    @staticmethod
    def _replace(undo: contextlib.ExitStack, owner: Any, attribute: str, value: Any) -> None:
        """Set an attribute and note how to take it back."""
        own = vars(owner)
        if attribute in own:
            undo.callback(setattr, owner, attribute, own[attribute])
        else:
            undo.callback(delattr, owner, attribute)
        setattr(owner, attribute, value)


_ANSWERING = _Answering()


@contextlib.contextmanager
def answering(device: Device, answers: tuple[Answer, ...] = ANSWERS) -> Iterator[None]:
    """Let megatron-core run on `device`: what it asks of CUDA inside this context is answered for the CPU.

    Does nothing on a device whose runtime answers CUDA calls. May be nested and entered by several threads at a time;
    the last to leave undoes it. Backward passes through megatron's buffers, mappings and recomputation run inside, too.

    Args:
        device: the run's device.
        answers: the table; the tests take entries away to show that each is needed.
    """
    if device.is_cuda_like:
        yield
        return
    _ANSWERING.enter(answers)
    try:
        yield
    finally:
        _ANSWERING.leave()
