"""Plug-ins are found and named with their faults; a choice is honoured or explained."""

import sys
from importlib.metadata import EntryPoint

import pytest

from loong_core.device import Availability, apply_environment, discover, discovery, select
from loong_core.device.cpu import CpuDevice
from loong_core.device.cuda import CudaDevice
from loong_core.errors import UserError

MODULE = "declared_for_this_test"


class Present(CpuDevice):
    name = "present"

    def availability(self):
        return Availability(True, "one of them")

    def environment_defaults(self):
        return {"PRESENT_MODE": "fast", "PRESENT_LOG": "0"}


class Absent(CpuDevice):
    name = "absent"

    def availability(self):
        return Availability(False, "its driver is missing; install absent-driver")


class Lookalike(Present):
    name = "lookalike"
    answers_for = frozenset({"cuda"})


class Confused(CpuDevice):
    name = "confused"

    def availability(self):
        raise OSError("cannot read /dev/confused")


class Impostor(Present):
    name = "cpu"


NOT_A_DEVICE = 3
AN_INSTANCE = Present()


@pytest.fixture
def plugins(monkeypatch):
    """Declare entry points as installed packages would; torch sees no GPU and LOONG_DEVICE is unset."""
    monkeypatch.setattr(CudaDevice, "availability", lambda self: Availability(False, "no GPU"))
    monkeypatch.delenv("LOONG_DEVICE", raising=False)

    def declare(**objects):
        entries = [
            EntryPoint(name, target if ":" in target else f"{MODULE}:{target}", discovery.ENTRY_POINT_GROUP)
            for name, target in objects.items()
        ]
        monkeypatch.setattr(discovery, "entry_points", lambda group: entries if group == "loong.devices" else [])

    monkeypatch.setitem(sys.modules, MODULE, sys.modules[__name__])
    declare()
    return declare


def found(name):
    return next(each for each in discover() if each.name == name)


def test_cpu_and_cuda_are_built_in(plugins):
    assert [(each.name, each.origin, each.state) for each in discover()] == [
        ("cpu", "built in", "available"),
        ("cuda", "built in", "unavailable"),
    ]


def test_a_plug_in_is_listed_with_its_origin(plugins):
    plugins(present="Present")
    assert found("present").state == "available"
    assert f"{MODULE}:Present" in found("present").origin


def test_a_plug_in_may_be_an_instance(plugins):
    plugins(present="AN_INSTANCE")
    assert found("present").device is AN_INSTANCE


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:Device", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("NoSuchClass", "AttributeError"),
        ("NOT_A_DEVICE", "TypeError: it is a int, not a loong_core.device.Device"),
        ("Impostor", "ValueError: its name 'cpu' is taken (built in)"),
    ],
)
def test_a_plug_in_that_does_not_load_is_listed_with_its_error(plugins, target, message):
    plugins(broken=target)
    assert (found("broken").state, found("broken").device) == ("failed", None)
    assert message in found("broken").reason


def test_a_plug_in_whose_availability_raises_is_listed_with_its_error(plugins):
    plugins(confused="Confused")
    assert found("confused").reason == "availability() raised OSError: cannot read /dev/confused"


def test_automatic_choice_prefers_cuda(plugins, monkeypatch):
    plugins(present="Present")
    monkeypatch.setattr(CudaDevice, "availability", lambda self: Availability(True, "1 GPU"))
    assert select().why == "cuda, chosen automatically: 1 GPU"


def test_automatic_choice_takes_an_available_plug_in_before_the_cpu_and_says_what_was_passed_over(plugins):
    plugins(absent="Absent", present="Present", broken="no_such_module:Device")
    choice = select("auto")
    assert choice.device.name == "present"
    assert choice.why.startswith("present, chosen automatically: one of them; not cuda (no GPU); not absent (")
    assert "not broken (ModuleNotFoundError" in choice.why


def test_automatic_choice_falls_back_to_the_cpu(plugins):
    assert select().device.name == "cpu"


def test_a_device_that_poses_as_cuda_takes_its_place(plugins, monkeypatch):
    plugins(lookalike="Lookalike")
    monkeypatch.setattr(CudaDevice, "availability", lambda self: Availability(True, "1 GPU"))
    assert found("cuda").reason == "torch's cuda calls are answered by lookalike"
    assert select().device.name == "lookalike"


def test_the_environment_names_a_device(plugins, monkeypatch):
    plugins(present="Present")
    monkeypatch.setenv("LOONG_DEVICE", "cpu")
    assert select().why.startswith("cpu, chosen by LOONG_DEVICE: ")


def test_a_name_given_wins_over_the_environment(plugins, monkeypatch):
    plugins(present="Present")
    monkeypatch.setenv("LOONG_DEVICE", "cpu")
    assert select("present").why == "present, chosen by name: one of them"


def test_an_unavailable_choice_says_what_is_missing_and_what_there_is(plugins):
    plugins(absent="Absent")
    with pytest.raises(UserError, match=r"install absent-driver\. Available here: cpu"):
        select("absent")


def test_a_broken_choice_says_its_error(plugins):
    plugins(broken="no_such_module:Device")
    with pytest.raises(UserError, match="cannot be loaded: ModuleNotFoundError"):
        select("broken")


def test_an_unknown_choice_names_the_nearest(plugins, monkeypatch):
    monkeypatch.setenv("LOONG_DEVICE", "cdua")
    with pytest.raises(UserError, match=r"no device is called 'cdua' \(chosen by LOONG_DEVICE\); did you mean 'cuda'"):
        select()


def test_environment_defaults_give_way_to_the_user(monkeypatch):
    monkeypatch.setenv("PRESENT_MODE", "careful")
    monkeypatch.delenv("PRESENT_LOG", raising=False)
    assert apply_environment(Present()) == {"PRESENT_LOG": "0"}
