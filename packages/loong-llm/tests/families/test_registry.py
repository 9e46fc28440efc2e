"""Families are found by entry points, and what is wrong with one is said."""

from importlib.metadata import EntryPoint

import pytest

from loong_core.errors import UserError
from loong_llm.families import registry
from loong_llm.families.llama import LLAMA


@pytest.fixture
def registered(monkeypatch):
    """Set the entry points that discovery sees; discovery starts anew before and after."""

    def register(*values):
        entries = [EntryPoint(value.split(":")[-1].lower(), value, registry.ENTRY_POINT_GROUP) for value in values]
        monkeypatch.setattr(registry, "entry_points", lambda group: entries)
        registry._discovered.cache_clear()

    yield register
    registry._discovered.cache_clear()


def test_every_family_of_this_package_is_registered():
    assert registry.families().keys() >= {"llama", "qwen", "qwen2", "qwen3"}
    assert registry.broken_families() == []


def test_a_broken_plugin_is_named_with_its_error_and_does_not_take_the_others_with_it(registered):
    registered("loong_llm.families.llama:LLAMA", "no_such_module:FAMILY", "loong_llm.families.llama:files")
    assert registry.families() == {"llama": LLAMA}
    errors = {broken.name: broken.error for broken in registry.broken_families()}
    assert errors["family"] == "ModuleNotFoundError: No module named 'no_such_module'"
    assert "is a function, not a loong_llm.families.family.Family" in errors["files"]


def test_an_unknown_model_type_brings_the_nearest_and_all_supported(registered):
    registered("loong_llm.families.llama:LLAMA", "loong_llm.families.qwen2:QWEN2", "no_such_module:FAMILY")
    with pytest.raises(UserError) as caught:
        registry.find_family({"model_type": "lama"})
    message = str(caught.value)
    assert "no family serves model_type 'lama' of config.json; the nearest is llama" in message
    assert "supported: llama, qwen2" in message
    assert "family of no_such_module:FAMILY failed to load: ModuleNotFoundError" in message


def test_a_config_without_model_type_is_told_so():
    with pytest.raises(UserError, match=r"config\.json has no model_type"):
        registry.find_family({"hidden_size": 4})
