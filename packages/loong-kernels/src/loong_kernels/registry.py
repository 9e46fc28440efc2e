"""Which implementation serves an op: decided once for each shape class, by priority, and told to whoever asks.

An op describes a call by a *case*, a small named tuple (device type, dtypes, the sizes that matter). A case's first
call asks the implementations for that device in order of priority whether they support it; the answer is kept, so that
every later call costs one dictionary look-up. `configure` names implementations; a name that cannot serve is an error,
never a silent fallback.
"""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from loong_kernels.errors import KernelChoiceError
from loong_kernels.implementation import ANY_DEVICE, Decision, Declined, Implementation
from loong_kernels.plugins import Plugin, load_plugins

__all__ = [
    "ANY_DEVICE",
    "REGISTRY",
    "Decision",
    "Declined",
    "Implementation",
    "KernelChoiceError",
    "Op",
    "Plugin",
    "Registry",
    "Standing",
    "configure",
    "decisions",
    "exclude",
    "implementations",
    "ops",
    "plugins",
    "register",
    "standing",
    "using",
]

logger = logging.getLogger(__name__)


class Op:
    """One function with one documented meaning, served by whichever implementation suits the case.

    Attributes:
        name: as in a run's `kernels:` section.
        summary: one line for a person.
        samples: `"module:function"` that gives the calls on which its implementations are checked, see
            `loong_kernels.conformance`.
    """

    def __init__(self, name: str, summary: str, samples: str, registry: Registry) -> None:
        self.name = name
        self.summary = summary
        self.samples = samples
        self._registry = registry
        self._served: dict[Any, Callable[..., Any]] = {}

    def serve(self, case: Any) -> Callable[..., Any]:
        """The function that serves `case`, a named tuple whose first field, `device`, is a torch device type."""
        if torch.compiler.is_compiling():
            return getattr(self, _attribute_for(self.name, case))
        function = self._served.get(case)
        return self._registry.first_call(self, case) if function is None else function

    def keep(self, case: Any, function: Callable[..., Any]) -> None:
        """Serve `case` by `function` from now on."""
        self._served[case] = function

    def forget(self) -> None:
        """Decide every case anew."""
        self._served.clear()


def _attribute_for(op_name: str, case: Any) -> str:
    """Decide while torch.compile traces: the tracer runs this as it stands and takes its result for a constant.

    A constant cannot be a function, hence the detour: the function becomes an attribute of the op, which the tracer
    reads and traces into.
    """
    op = REGISTRY.op(op_name)
    attribute = "serving_" + "_".join(str(value) for value in case).replace(".", "_")
    setattr(op, attribute, REGISTRY.decide(op, case)[1])
    return attribute


# As torch.compiler.assume_constant_result marks it, which would import the compiler along with this package.
_attribute_for._dynamo_marked_constant = True  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Standing:
    """One implementation as a device sees it: `reason` says why it cannot serve there, None if it may."""

    implementation: Implementation
    reason: str | None


class Registry:
    """Ops, their implementations, and the decisions taken. The process has one, `REGISTRY`; tests make their own."""

    def __init__(self, *, discover: bool = False) -> None:
        self._ops: dict[str, Op] = {}
        self._implementations: list[Implementation] = []
        self._overrides: dict[str, str] = {}
        self._excluded: dict[str, str] = {}
        self._failed: dict[tuple[str, str, Any], str] = {}
        self._decisions: dict[tuple[str, Any], Decision] = {}
        self._plugins: list[Plugin] | None = None if discover else []
        self._origin = "loong-kernels"
        self._registered: list[str] = []
        self._lock = threading.RLock()

    # What there is

    def define(self, name: str, summary: str, samples: str = "") -> Op:
        """Add an op; see `Op` for the arguments."""
        if name in self._ops:
            raise ValueError(f"an op named {name!r} exists already")
        self._ops[name] = Op(name, summary, samples, self)
        return self._ops[name]

    def register(self, implementation: Implementation) -> None:
        """Add an implementation of a known op.

        Raises:
            ValueError: the op is unknown, or has an implementation of that name for one of its devices already.
        """
        self.op(implementation.op)
        for other in self._implementations:
            same = other.op == implementation.op and other.name == implementation.name
            if same and (
                other.serves_device(implementation.devices[0]) or implementation.serves_device(other.devices[0])
            ):
                raise ValueError(f"{implementation.op}/{implementation.name} is registered already, by {other.origin}")
        self._implementations.append(replace(implementation, origin=self._origin))
        self._registered.append(f"{implementation.op}/{implementation.name}")
        self._decide_anew()

    @contextmanager
    def registering(self, origin: str) -> Iterator[list[str]]:
        """Within the block, what is registered counts as `origin`'s; all of it is taken back if the block raises."""
        before, excluded, outer = list(self._implementations), dict(self._excluded), self._origin
        self._origin, self._registered = origin, []
        try:
            yield self._registered
        except BaseException:
            self._implementations[:] = before
            self._excluded = excluded
            self._decide_anew()
            raise
        finally:
            self._origin = outer

    def exclude(self, toolchain: str, reason: str) -> None:
        """Let nothing that uses `toolchain` (`"triton"`) serve, for `reason`; for devices that cannot run it."""
        self._excluded[toolchain] = reason
        self._decide_anew()

    def op(self, name: str) -> Op:
        """The op of that name.

        Raises:
            ValueError: there is none; the message names those there are.
        """
        if name not in self._ops:
            raise ValueError(self._unknown_op(name))
        return self._ops[name]

    def ops(self) -> list[Op]:
        """Every op, by name."""
        return [self._ops[name] for name in sorted(self._ops)]

    def plugins(self) -> list[Plugin]:
        """Every entry point of the group `loong.kernels`, loaded or with the error that kept it from loading."""
        with self._lock:
            if self._plugins is None:
                self._plugins = []  # what a plug-in asks while it loads must not load it again
                self._plugins = load_plugins(self)
            return list(self._plugins)

    def implementations(self, op: str, device_type: str | None = None) -> list[Implementation]:
        """Those of an op (on a device type), the first choice first, those served only by name last."""
        self.op(op)
        self.plugins()
        chosen = [
            one
            for one in self._implementations
            if one.op == op and (device_type is None or one.serves_device(device_type))
        ]
        return sorted(chosen, key=lambda one: (one.priority is None, -(one.priority or 0)))

    # What is chosen

    def configure(self, overrides: Mapping[str, str], *, device_type: str | None = None) -> None:
        """Name the implementation of some ops; `"auto"` leaves an op to the priorities. Replaces earlier overrides.

        Code that torch.compile has traced already keeps what it was traced with.

        Args:
            overrides: op name to implementation name.
            device_type: the torch device type of the run; if given, a name that cannot serve there is an error now
                rather than at the op's first call.

        Raises:
            KernelChoiceError: names every impossible choice with its alternatives; nothing is changed then.
        """
        faults = [fault for op, name in overrides.items() if (fault := self._fault_of(op, name, device_type))]
        if faults:
            raise KernelChoiceError(faults)
        self._overrides = {op: name for op, name in overrides.items() if name != "auto"}
        self._decide_anew()

    @contextmanager
    def using(self, overrides: Mapping[str, str]) -> Iterator[None]:
        """Within the block, these overrides in place of the configured ones; for tests and measurements.

        Raises:
            KernelChoiceError: as `configure`.
        """
        before = self._overrides
        self.configure(overrides)
        try:
            yield
        finally:
            self._overrides = before
            self._decide_anew()

    def decisions(self) -> list[Decision]:
        """What was decided so far, by op."""
        return sorted(self._decisions.values(), key=lambda decision: decision.op)

    def decide(self, op: Op, case: Any) -> tuple[Decision, Callable[..., Any]]:
        """Choose what serves `case`, and record it.

        Raises:
            KernelChoiceError: what was asked for by name cannot serve, or nothing can.
        """
        wanted = self._overrides.get(op.name)
        with self._lock:
            declined: list[Declined] = []
            for candidate in self.implementations(op.name, case.device):
                if candidate.priority is None if wanted is None else candidate.name != wanted:
                    continue
                reason, function = self._try(candidate, case)
                if function is None:
                    declined.append(Declined(candidate.name, reason or "gives no reason"))
                    continue
                why = "asked for by name" if wanted else "first choice" if not declined else "next that serves"
                decision = Decision(op.name, case, candidate.name, candidate.origin, why, tuple(declined))
                self._decisions[op.name, case] = decision
                return decision, function
        raise KernelChoiceError([self._nothing_serves(op.name, wanted, case)], tuple(declined))

    def first_call(self, op: Op, case: Any) -> Callable[..., Any]:
        """A function for one call of `case`: it falls back, with one logged reason, if what was chosen fails to run."""

        def call(*arguments: Any) -> Any:
            errors: list[Exception] = []
            while True:
                try:
                    decision, function = self.decide(op, case)
                except KernelChoiceError:
                    if not errors:
                        raise
                    self._forgive(op.name, case)
                    raise errors[0] from None
                try:
                    result = function(*arguments)
                except torch.OutOfMemoryError:
                    raise
                except Exception as error:
                    if op.name in self._overrides:
                        error.add_note(f"in {op.name}/{decision.implementation}, which was asked for by name")
                        raise
                    errors.append(error)
                    reason = f"failed with {type(error).__name__}: {error}"
                    self._failed[op.name, decision.implementation, case] = reason
                    continue
                if errors:
                    logger.warning("%s", decision)
                op.keep(case, function)
                return result

        return call

    # Why not

    def standing(self, op: str, device_type: str) -> list[Standing]:
        """Every implementation of an op, and why it cannot serve on a device type of this machine, if it cannot."""
        return [Standing(one, self._obstacle(one, device_type)) for one in self.implementations(op)]

    def _try(self, implementation: Implementation, case: Any) -> tuple[str | None, Callable[..., Any] | None]:
        """The implementation's function, or why there is none for this case."""
        try:
            reason = (
                self._failed.get((implementation.op, implementation.name, case))
                or self._obstacle(implementation, case.device)
                or implementation.supports(case)
            )
            return (reason, None) if reason else (None, implementation.load())
        except Exception as error:
            reason = f"failed to load with {type(error).__name__}: {error}"
            self._failed[implementation.op, implementation.name, case] = reason
            logger.warning("%s/%s %s", implementation.op, implementation.name, reason)
            return reason, None

    def _obstacle(self, implementation: Implementation, device_type: str) -> str | None:
        excluded = [self._excluded[one] for one in sorted(implementation.uses) if one in self._excluded]
        return excluded[0] if excluded else implementation.obstacle(device_type)

    def _forgive(self, op: str, case: Any) -> None:
        """Every implementation failed on this call, so the call is at fault, not they."""
        self._failed = {key: reason for key, reason in self._failed.items() if (key[0], key[2]) != (op, case)}
        self._decisions.pop((op, case), None)

    def _fault_of(self, op: str, name: str, device_type: str | None) -> str | None:
        if op not in self._ops:
            return self._unknown_op(op)
        if name == "auto":
            return None
        chosen = [one for one in self.implementations(op) if one.name == name]
        if not chosen:
            return f"{op} has no implementation {name!r}; there are {self._alternatives(op, device_type)}"
        if device_type is None:
            return None
        obstacles = [self._obstacle(one, device_type) for one in chosen]
        if None in obstacles:
            return None
        return f"{op}/{name} {obstacles[0]}; there are {self._alternatives(op, device_type)}"

    def _nothing_serves(self, op: str, wanted: str | None, case: Any) -> str:
        shape = ", ".join(f"{field}={value}" for field, value in case._asdict().items())
        reasons = "; ".join(
            f"{one.name} (needs {one.needs}): {self._try(one, case)[0] or 'can serve'}"
            for one in self.implementations(op)
        )
        asked = f"{op}/{wanted}, asked for by name, cannot serve" if wanted else f"nothing serves {op} for"
        return f"{asked} [{shape}]. Implementations: {reasons}"

    def _alternatives(self, op: str, device_type: str | None) -> str:
        parts = []
        for one in self.implementations(op):
            obstacle = self._obstacle(one, device_type) if device_type else None
            parts.append(f"{one.name} (needs {one.needs}{'; here: ' + obstacle if obstacle else ''})")
        return ", ".join(parts)

    def _unknown_op(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._ops, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"there is no op {name!r}; {hint}ops: {', '.join(sorted(self._ops))}"

    def _decide_anew(self) -> None:
        self._decisions.clear()
        self._failed.clear()
        for op in self._ops.values():
            op.forget()


REGISTRY = Registry(discover=True)
"""The process's registry: the ops of this package and whatever plug-ins bring."""

configure = REGISTRY.configure
decisions = REGISTRY.decisions
exclude = REGISTRY.exclude
implementations = REGISTRY.implementations
ops = REGISTRY.ops
plugins = REGISTRY.plugins
register = REGISTRY.register
standing = REGISTRY.standing
using = REGISTRY.using
