"""`loong ops` says what serves each op, and why the others do not."""

import pytest

import loong_kernels
from loong_core.cli.ops import verdicts
from loong_kernels import registry
from loong_kernels.plugins import Plugin
from loong_kernels.registry import Implementation, Standing


def standing(name, *, priority=0, reason=None):
    return Standing(Implementation(name, "op", ("*",), print, priority=priority), reason)


def test_the_first_that_may_serve_serves_and_the_others_say_why_not():
    told = verdicts(
        [
            standing("fast", priority=100, reason="is for cuda, not cpu"),
            standing("good", priority=10),
            standing("reference"),
            standing("interpreted", priority=None),
        ]
    )
    assert [(each.implementation.name, state) for each, state, _ in told] == [
        ("fast", "unavailable"),
        ("good", "serves"),
        ("reference", "next"),
        ("interpreted", "by name"),
    ]
    assert told[0][2] == "is for cuda, not cpu"


@pytest.mark.parametrize(
    "op", ["attention", "linear_cross_entropy", "packed_attention", "rms_norm", "rotary", "swiglu"]
)
def test_every_op_is_served_on_the_cpu(op, loong):
    assert loong_kernels.registry.REGISTRY is registry.REGISTRY
    lines = loong("ops", "--device", "cpu").out.splitlines()
    start = next(index for index, line in enumerate(lines) if line.split()[:1] == [op])
    own = [lines[start]]
    for line in lines[start + 1 :]:
        if not line.startswith("  "):
            break
        own.append(line)
    assert sum(" serves " in line and "first choice" in line for line in own) == 1


def test_what_is_for_another_device_says_so(loong):
    assert "triton unavailable is for cuda, not cpu loong-kernels" in loong("ops", "--device", "cpu").flat


def test_a_plug_in_that_failed_is_named_with_its_error(loong, monkeypatch):
    broken = Plugin("quantum", "loong-quantum 1.0", "ImportError: no qubits")
    monkeypatch.setattr(registry, "plugins", lambda: [broken])
    assert "plug-in quantum of loong-quantum 1.0 failed: ImportError: no qubits" in loong("ops", "--device", "cpu").flat


def test_an_unknown_device_is_the_users_error(loong):
    answer = loong("ops", "--device", "cup")
    assert (answer.status, "did you mean 'cpu'" in answer.err) == (2, True)
