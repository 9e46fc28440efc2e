"""Keeping less between forward and backward: parts of a built model repeat their forward, or use the host's memory.

Both are put on modules from outside, by name, and change no number: a repeated forward is the same forward, on the same
random numbers, with the same communication among the same ranks. What happens once a microbatch (gradients, counts of
experts' load, auxiliary losses) happens in backward, which is not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from loong_core.device.protocol import Device
from loong_core.errors import UserError
from loong_core.nn.name_patterns import chosen
from loong_core.nn.offload import LEAST_BYTES, Offloader
from loong_core.nn.parts import NOTHING, Parts, outermost
from loong_core.parallel.context import ParallelContext
from loong_core.wording import counted

_REPEATING: ContextVar[bool] = ContextVar("repeating", default=False)


def repeating() -> bool:
    """Whether the forward that is running repeats one that ran before (for hooks that count forwards)."""
    return _REPEATING.get()


def keep_less(
    stages: Sequence[nn.Module],
    context: ParallelContext,
    device: Device,
    *,
    recompute: Parts = NOTHING,
    offload: Parts = NOTHING,
    component: str = "",
    least_bytes: int = LEAST_BYTES,
) -> str:
    """Choose what modules keep for backward; to be called on built modules, before an engine is built around them.

    Args:
        stages: this rank's part of the model, or of one component of it.
        context: the one they were built with; collective over its pipeline axis.
        device: copies between it and the host run beside its work.
        recompute: parts of which the inputs alone are kept; their forward is repeated in backward.
        offload: parts of which what they keep (of recomputed ones the inputs) waits on the host, and comes back while
            the part after runs its backward.
        least_bytes: smaller memories are not offloaded.
        component: put before the run file's keys in errors and news, as `vision.`.

    Returns:
        a line for people, empty where nothing is chosen.

    Raises:
        UserError: a pattern matches nothing of the model, or a part of what is recomputed is to be offloaded.
    """
    repeated = _modules(stages, recompute, context, f"{component}recompute.modules")
    moved = _modules(stages, offload, context, f"{component}offload.modules")
    for number, name in moved:
        outer = [each for each in repeated if each[0] == number and name.startswith(f"{each[1]}.")]
        if outer:
            raise UserError(
                f"{component}offload.modules: {name} is part of {outer[0][1]}, which is recomputed and keeps nothing "
                f"of it; offload {outer[0][1]}, whose input is kept, or recompute less"
            )
    offloader = Offloader(device, least_bytes) if moved else None
    for number, name in dict.fromkeys([*repeated, *moved]):
        module = stages[number].get_submodule(name)
        module.forward = _Forward(  # type: ignore[method-assign]
            module, (number, name) in set(repeated), offloader if (number, name) in set(moved) else None
        )
    told = [f"recompute: {counted(len(repeated), 'module')} ({recompute})"] if repeated else []
    if moved:
        told.append(f"offload: {counted(len(moved), 'module')} ({offload})")
    return f"{component}{'; '.join(told)}" if told else ""


def _modules(stages: Sequence[nn.Module], parts: Parts, context: ParallelContext, where: str) -> list[tuple[int, str]]:
    """Number of the stage and name in it of each chosen module; none lies within another."""
    blocks = [(number, name) for number, stage in enumerate(stages) for name in _block_names(stage)]
    found = blocks[: parts.blocks]
    if parts.modules:
        callables = [
            (number, name)
            for number, stage in enumerate(stages)
            for name, module in stage.named_modules()
            if name and _has_forward(module)
        ]
        everyones = chosen(_of_pipeline([name for _, name in callables], context), parts.modules, where)
        found += [(number, name) for number, name in callables if name in everyones]
    return [
        (number, name)
        for number in range(len(stages))
        for name in outermost({name for each, name in found if each == number})
    ]


def _of_pipeline(names: list[str], context: ParallelContext) -> list[str]:
    """The names on all pipeline ranks: a pattern may be meant for the modules of another."""
    if context.pipeline.size == 1:
        return names
    everyones: list[Any] = [None] * context.pipeline.size
    dist.all_gather_object(everyones, names, group=context.pipeline.group)
    return [name for each in everyones for name in each]


def _block_names(stage: nn.Module) -> list[str]:
    """The children of every `layers` in a stage."""
    return [
        f"{name}.{child}"
        for name, module in stage.named_modules()
        if name.rpartition(".")[2] == "layers"
        for child, _ in module.named_children()
    ]


def _has_forward(module: nn.Module) -> bool:
    return not isinstance(module, (nn.ModuleDict, nn.ModuleList, nn.ParameterList, nn.ParameterDict))


class _Forward:
    """A module's forward, put in its place; the module's hooks stay around it."""

    def __init__(self, module: nn.Module, repeats: bool, offloader: Offloader | None) -> None:
        self.module = module
        self.repeats = repeats
        self.offloader = offloader

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        kept: AbstractContextManager[Any] = nullcontext()
        if self.offloader is not None:
            kept = self.offloader.keeping(self.module)
        with kept:
            if not self.repeats:
                return self._forward(*args, **kwargs)
            if (fewer := getattr(self.module, "fewer_inputs", None)) is not None:
                args = fewer(*args)
            if torch.compiler.is_compiling():  # then a repetition is traced once, and runs no hooks
                return checkpoint(self._forward, *args, use_reentrant=False, **kwargs)
            return checkpoint(self._forward, *args, use_reentrant=False, context_fn=_contexts, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module's class does."""
        return type(self.module).forward(self.module, *args, **kwargs)


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Around the first forward, and around the one that repeats it."""
    return nullcontext(), _repeat()


@contextmanager
def _repeat() -> Iterator[None]:
    token = _REPEATING.set(True)
    try:
        yield
    finally:
        _REPEATING.reset(token)
