"""`loong models` lists the named configurations of whatever families are installed."""

import sys
from types import ModuleType

import pytest

from loong_core.cli.models import short_count


class Family:
    def __init__(self, name, sizes):
        self.name = name
        self.model_types = (name, f"{name}_text")
        self.sizes = sizes

    def named_sizes(self):
        return self.sizes


class Broken(Family):
    def named_sizes(self):
        raise ValueError("config.json of broken-7b has no hidden_size")


@pytest.fixture
def families(monkeypatch, declare):
    module = ModuleType("declared_families")
    module.DRAGON = Family("dragon", {"dragon-8b": 8_030_261_248, "dragon-0.6b": 596_049_920})
    module.PHOENIX = Family("phoenix", {"phoenix-1b": 1_000_000_000})
    module.BROKEN = Broken("broken", {})
    monkeypatch.setitem(sys.modules, "declared_families", module)

    def put(**names):
        declare("loong.families", **{entry: f"declared_families:{name}" for entry, name in names.items()})

    return put


def test_configurations_are_listed_by_size_with_family_types_and_origin(loong, families):
    families(dragon="DRAGON")
    answer = loong("models")
    assert answer.status == 0
    small = "dragon-0.6b 596 M dragon dragon, dragon_text declared_families:DRAGON"
    assert answer.flat.index(small) < answer.flat.index("dragon-8b 8.03 B dragon")


def test_a_text_narrows_the_list(loong, families):
    families(dragon="DRAGON", phoenix="PHOENIX")
    flat = loong("models", "Phoenix").flat
    assert "phoenix-1b" in flat
    assert "dragon-8b" not in flat


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("BROKEN", "ValueError: config.json of broken-7b has no hidden_size"),
        ("MISSING", "AttributeError: module 'declared_families' has no attribute 'MISSING'"),
    ],
)
def test_a_family_that_fails_is_named_with_its_error_beside_the_others(target, message, loong, families):
    families(dragon="DRAGON", broken=target)
    answer = loong("models")
    assert answer.status == 0
    assert "dragon-8b" in answer.flat
    assert f"failed: {message}" in answer.flat


def test_a_text_that_nothing_holds_names_the_families(loong, families):
    families(dragon="DRAGON", phoenix="PHOENIX")
    answer = loong("models", "unicorn")
    assert answer.status == 2
    assert "no named model or family holds 'unicorn'; families: dragon, phoenix" in answer.err


def test_without_a_family_it_says_where_they_come_from(loong, families):
    families()
    answer = loong("models")
    assert (answer.status, "loong-llm" in answer.err) == (2, True)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [(999, "999"), (4_096, "4.10 K"), (494_032_768, "494 M"), (70_553_706_496, "70.6 B"), (1.02e12, "1.02 T")],
)
def test_counts_have_three_digits(parameters, text):
    assert short_count(parameters) == text
