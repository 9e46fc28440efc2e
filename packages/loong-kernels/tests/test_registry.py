"""Choosing an implementation: priorities, reasons, names, failures, and what is told."""

import logging
from typing import NamedTuple

import pytest
import torch

from loong_kernels.errors import KernelChoiceError
from loong_kernels.registry import REGISTRY, Implementation, Registry


class Case(NamedTuple):
    device: str
    size: int


@pytest.fixture
def registry():
    made = Registry()
    made.define("double", "twice the argument")
    made.register(Implementation("reference", "double", ("*",), lambda x: 2 * x))
    return made


def serve(registry, x, device="cpu", size=3):
    return registry.op("double").serve(Case(device, size))(x)


def fails(*arguments):
    raise RuntimeError("no such instruction")


def served_by(registry):
    return [(decision.case.size, decision.implementation) for decision in registry.decisions()]


def test_the_highest_priority_that_supports_the_case_serves(registry):
    registry.register(Implementation("fast", "double", ("cpu",), lambda x: x + x, priority=10))
    registry.register(
        Implementation("fastest", "double", ("cpu",), fails, priority=20, supports=lambda case: f"{case.size} is odd")
    )
    assert serve(registry, 4) == 8
    (decision,) = registry.decisions()
    assert decision.implementation == "fast"
    assert str(decision) == "double [device=cpu, size=3]: fast (next that serves; not fastest: 3 is odd)"


def test_an_implementation_for_another_device_is_not_asked(registry):
    registry.register(Implementation("elsewhere", "double", ("cuda",), fails, priority=10, supports=fails))
    assert serve(registry, 4) == 8
    assert serve(registry, 4, device="meta") == 8


def test_a_case_is_decided_once(registry):
    asked = []
    registry.register(
        Implementation(
            "fast", "double", ("cpu",), lambda x: x + x, priority=10, supports=lambda case: asked.append(case)
        )
    )
    for size in (3, 3, 5, 3, 5):
        serve(registry, 4, size=size)
    assert [case.size for case in asked] == [3, 5]


def test_an_implementation_without_priority_serves_only_by_name(registry):
    registry.register(Implementation("slow", "double", ("cpu",), lambda x: sum([x, x]), priority=None))
    serve(registry, 4)
    assert served_by(registry) == [(3, "reference")]
    registry.configure({"double": "slow"})
    serve(registry, 4)
    assert served_by(registry) == [(3, "slow")]
    assert registry.decisions()[0].why == "asked for by name"


def test_auto_leaves_the_choice_to_priorities(registry):
    registry.configure({"double": "auto"})
    assert serve(registry, 4) == 8
    assert registry.decisions()[0].why == "first choice"


def test_a_new_implementation_is_considered_for_cases_decided_before(registry):
    serve(registry, 4)
    registry.register(Implementation("fast", "double", ("cpu",), lambda x: x + x, priority=10))
    serve(registry, 4)
    assert served_by(registry) == [(3, "fast")]


def test_what_fails_at_its_first_call_is_passed_over_with_one_logged_reason(registry, caplog):
    calls = []
    registry.register(Implementation("broken", "double", ("cpu",), lambda x: calls.append(x) or fails(), priority=10))
    with caplog.at_level(logging.WARNING):
        assert [serve(registry, x) for x in (4, 5)] == [8, 10]
    assert calls == [4]
    assert len(caplog.records) == 1
    assert "not broken: failed with RuntimeError: no such instruction" in caplog.text


def test_what_cannot_be_imported_is_passed_over_with_its_error(registry, caplog):
    registry.register(Implementation("absent", "double", ("cpu",), "no_such_module:double", priority=10))
    assert serve(registry, 4) == 8
    assert "No module named 'no_such_module'" in registry.decisions()[0].declined[0].reason
    assert "No module named 'no_such_module'" in caplog.text


def test_what_was_asked_for_by_name_and_fails_is_an_error(registry):
    registry.register(Implementation("broken", "double", ("cpu",), fails, priority=10))
    registry.configure({"double": "broken"})
    with pytest.raises(RuntimeError, match="no such instruction") as error:
        serve(registry, 4)
    assert "in double/broken, which was asked for by name" in error.value.__notes__


def test_an_error_of_the_call_is_raised_and_held_against_nobody(registry):
    registry.register(Implementation("fast", "double", ("cpu",), lambda x: x.upper() + x, priority=10))
    with pytest.raises(AttributeError):
        serve(registry, None)
    serve(registry, "a")
    assert served_by(registry) == [(3, "fast")]


def test_running_out_of_memory_is_not_a_reason_to_fall_back(registry):
    def hungry(x):
        raise torch.OutOfMemoryError("too much")

    registry.register(Implementation("hungry", "double", ("cpu",), hungry, priority=10))
    with pytest.raises(torch.OutOfMemoryError):
        serve(registry, 4)


def test_a_name_that_declines_the_case_is_an_error_that_tells_everyones_reason(registry):
    registry.register(
        Implementation(
            "fast", "double", ("cuda",), fails, supports=lambda case: "size 3 is odd", needs="an H200", priority=10
        )
    )
    registry.configure({"double": "fast"})
    with pytest.raises(KernelChoiceError) as error:
        serve(registry, 4, device="cuda")
    assert str(error.value) == (
        "double/fast, asked for by name, cannot serve [device=cuda, size=3]. Implementations: "
        "fast (needs an H200): size 3 is odd; reference (needs any device): can serve"
    )
    assert error.value.declined[0].reason == "size 3 is odd"


def test_impossible_choices_are_told_together_with_the_alternatives(registry):
    registry.register(Implementation("fast", "double", ("cuda",), fails, needs="an H200", priority=10))
    with pytest.raises(KernelChoiceError) as error:
        registry.configure({"duoble": "fast", "double": "fst"}, device_type="cpu")
    assert error.value.faults == [
        "there is no op 'duoble'; did you mean 'double'? ops: double",
        "double has no implementation 'fst'; there are "
        "fast (needs an H200; here: is for cuda, not cpu), reference (needs any device)",
    ]


def test_a_name_that_cannot_serve_the_device_is_an_error_at_once_and_changes_nothing(registry):
    registry.register(Implementation("fast", "double", ("cuda",), fails, needs="an H200", priority=10))
    with pytest.raises(KernelChoiceError, match="double/fast is for cuda, not cpu; there are fast"):
        registry.configure({"double": "fast"}, device_type="cpu")
    assert serve(registry, 4) == 8


def test_a_name_whose_needs_are_missing_is_an_error_at_once(registry):
    registry.register(
        Implementation("fast", "double", ("cpu",), fails, available=lambda: "there is no such card", priority=10)
    )
    with pytest.raises(KernelChoiceError, match="double/fast there is no such card"):
        registry.configure({"double": "fast"}, device_type="cpu")


def test_an_excluded_toolchain_serves_nothing_and_the_reason_is_told(registry):
    registry.register(Implementation("fast", "double", ("cpu",), fails, priority=10, uses=frozenset({"triton"})))
    registry.exclude("triton", "this device has no Triton")
    assert serve(registry, 4) == 8
    assert registry.standing("double", "cpu")[0].reason == "this device has no Triton"


def test_standing_lists_every_implementation_first_choice_first(registry):
    registry.register(Implementation("fast", "double", ("cpu",), fails, priority=10))
    registry.register(Implementation("named", "double", ("cpu",), fails, priority=None))
    registry.register(Implementation("far", "double", ("cuda",), fails, priority=20))
    assert [(one.implementation.name, one.reason) for one in registry.standing("double", "cpu")] == [
        ("far", "is for cuda, not cpu"),
        ("fast", None),
        ("reference", None),
        ("named", None),
    ]


def test_using_restores_what_was_configured(registry):
    registry.register(Implementation("fast", "double", ("cpu",), lambda x: x + x, priority=10))
    registry.configure({"double": "fast"})
    with registry.using({"double": "reference"}):
        serve(registry, 4)
        assert served_by(registry) == [(3, "reference")]
    serve(registry, 4)
    assert served_by(registry) == [(3, "fast")]


def test_a_second_implementation_of_the_same_name_and_device_is_refused(registry):
    registry.register(Implementation("fast", "double", ("cpu",), fails))
    registry.register(Implementation("fast", "double", ("cuda",), fails))
    with pytest.raises(ValueError, match="double/fast is registered already, by loong-kernels"):
        registry.register(Implementation("fast", "double", ("xla", "cpu"), fails))


def test_an_implementation_of_an_unknown_op_is_refused(registry):
    with pytest.raises(ValueError, match="there is no op 'dubble'; did you mean 'double'"):
        registry.register(Implementation("fast", "dubble", ("cpu",), fails))


def test_an_op_is_defined_once(registry):
    with pytest.raises(ValueError, match="an op named 'double' exists already"):
        registry.define("double", "again")


def test_every_op_of_the_package_names_what_its_implementations_need():
    for op in REGISTRY.ops():
        for one in REGISTRY.implementations(op.name):
            assert one.devices == ("*",) or one.needs != "any device", f"{op.name}/{one.name}"
