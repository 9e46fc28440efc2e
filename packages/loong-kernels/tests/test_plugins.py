"""Implementations from other distributions: found by entry point, recorded when they fail, never half there."""

import logging
import sys

import pytest

from loong_kernels.registry import Registry

MODULE = """
from loong_kernels.registry import Implementation

def good(registry):
    registry.register(Implementation("vendor", "double", ("cpu",), lambda x: x + x, priority=10))

def bad(registry):
    registry.register(Implementation("half", "double", ("cpu",), lambda x: x + x, priority=20))
    registry.exclude("triton", "because")
    raise OSError("libvendor.so: not found")

def asking(registry):
    registry.implementations("double")
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution whose entry points are the given functions of `MODULE`; a registry that discovers them."""

    def install(**entry_points):
        lines = "".join(f"{name} = {target}\n" for name, target in entry_points.items())
        info = tmp_path / "vendor_kernels-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor-kernels\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[loong.kernels]\n{lines}")
        (tmp_path / "vendor_kernels_of_this_test.py").write_text(MODULE)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "vendor_kernels_of_this_test", raising=False)
        registry = Registry(discover=True)
        registry.define("double", "twice the argument")
        return registry

    return install


def of_vendor(registry):
    return [plugin for plugin in registry.plugins() if plugin.origin == "vendor-kernels 1.2"]


def test_a_plugin_is_loaded_when_first_needed_and_named_as_origin(installed):
    registry = installed(mine="vendor_kernels_of_this_test:good")
    assert "vendor_kernels_of_this_test" not in sys.modules
    (implementation,) = registry.implementations("double")
    assert (implementation.name, implementation.origin) == ("vendor", "vendor-kernels 1.2")
    (plugin,) = of_vendor(registry)
    assert plugin.error is None
    assert plugin.implementations == ("double/vendor",)


def test_a_plugin_that_raises_is_recorded_with_its_error_and_nothing_of_it_stays(installed, caplog):
    with caplog.at_level(logging.WARNING):
        registry = installed(broken="vendor_kernels_of_this_test:bad", mine="vendor_kernels_of_this_test:good")
        assert [one.name for one in registry.implementations("double")] == ["vendor"]
    assert [plugin.error for plugin in of_vendor(registry)] == ["OSError: libvendor.so: not found", None]
    assert "kernels of plug-in 'broken' (vendor-kernels 1.2) are not available: OSError: libvendor.so" in caplog.text
    assert not registry._excluded


def test_a_plugin_that_cannot_be_imported_is_recorded_with_its_error(installed):
    registry = installed(absent="no_such_module:register")
    (plugin,) = of_vendor(registry)
    assert plugin.error == "ModuleNotFoundError: No module named 'no_such_module'"


def test_a_plugin_may_ask_the_registry_while_it_loads(installed):
    registry = installed(asks="vendor_kernels_of_this_test:asking")
    (plugin,) = of_vendor(registry)
    assert plugin.error is None
