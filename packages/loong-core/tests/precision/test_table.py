"""Tables of measurements: what is read off them, and what is wrong with a file that is none."""

import pytest

from loong_core.errors import UserError
from loong_core.precision.adaptive import AdaptiveChoice, explained
from loong_core.precision.table import Row, Table, Work, read_table, shipped_table

WIDE, NARROW = Work("linear", 8192, 4096), Work("linear", 512, 512)
EXPERTS = Work("experts", 768, 2048, 128)


def row(work, tokens, bf16, blockwise):
    return Row(work, tokens, {"bf16": bf16, "blockwise": blockwise})


TABLE = Table(
    "a card",
    "today",
    (
        row(WIDE, 1024, 100.0, 200.0),
        row(WIDE, 4096, 400.0, 200.0),
        row(NARROW, 4096, 10.0, 20.0),
        row(EXPERTS, 8192, 300.0, 250.0),
    ),
)


@pytest.mark.parametrize(("tokens", "gain"), [(1024, 0.5), (2048, 1.25), (4096, 2.0), (64, 0.5), (65536, 2.0)])
def test_a_gain_is_read_off_between_measured_numbers_of_tokens_and_beyond_them(tokens, gain):
    estimate = TABLE.estimate(WIDE, tokens)
    assert estimate.measured
    assert estimate.gain == pytest.approx(gain)


def test_a_shape_that_was_not_measured_is_judged_by_the_nearest_of_its_kind():
    estimate = TABLE.estimate(Work("linear", 6144, 4096), 4096)
    assert not estimate.measured
    assert estimate.nearest.work == WIDE
    assert TABLE.estimate(Work("experts", 1024, 2048, 64), 10).nearest.work == EXPERTS
    assert Table("a card", "today", (row(WIDE, 1, 1.0, 1.0),)).estimate(EXPERTS, 10) is None


def test_the_choice_is_the_faster_one_and_follows_the_number_of_tokens():
    choice = AdaptiveChoice(TABLE)
    assert [choice(WIDE, tokens) for tokens in (512, 1024, 4096, 1000)] == [False, False, True, False]
    assert not choice(NARROW, 4096)
    assert choice(EXPERTS, 8192)
    assert not choice(WIDE, 0)
    assert not AdaptiveChoice(Table("a card", "today", ()))(WIDE, 4096)


def test_bf16_is_chosen_where_the_host_could_not_launch_all_layers_as_fast_as_the_device_computes():
    def table(host):
        times = {"bf16": 300.0, "blockwise": 200.0}
        return Table("a card", "today", (Row(WIDE, 4096, times, {"bf16": 50.0, "blockwise": host}),))

    works = [WIDE, WIDE]
    assert AdaptiveChoice(table(150.0), works)(WIDE, 4096)
    slow = AdaptiveChoice(table(250.0), works)
    assert not slow(WIDE, 4096)
    assert slow(WIDE, 8192)
    assert "the host could not launch so many" in slow.decisions[0]


def test_each_decision_is_told_once():
    choice = AdaptiveChoice(TABLE)
    for tokens in (4096, 4097, 4100, 1024):
        choice(WIDE, tokens)
    assert len(choice.decisions) == 2
    assert "linear 4096 to 8192, 4096 tokens: blockwise, blockwise 2.00 times" in choice.decisions[0]
    assert "bf16" in choice.decisions[1]
    assert "as the nearest shape measured" in explained(TABLE, Work("linear", 6144, 4096), 4096)


def test_a_table_that_was_written_is_read_again(tmp_path):
    TABLE.write(tmp_path / "there" / "table.json")
    assert read_table(tmp_path / "there" / "table.json") == TABLE


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("{", "is no table of measurements"),
        ('{"device": "a", "made_with": "b"}', "rows"),
        (
            '{"device": "a", "made_with": "b", "rows": [{"kind": "linear", "out_features": 1, "in_features": 1, '
            '"tokens": 4, "microseconds": {"bf16": 0}}]}',
            "no positive time",
        ),
    ],
)
def test_a_file_that_is_no_table_is_told_with_what_to_do(tmp_path, text, finding):
    file = tmp_path / "table.json"
    file.write_text(text)
    with pytest.raises(UserError, match="`loong tune` writes one") as told:
        read_table(file)
    assert finding in str(told.value)
    with pytest.raises(UserError, match="cannot be read"):
        read_table(tmp_path / "nowhere.json")


def test_the_shipped_table_of_the_h200_covers_both_kinds_of_layers():
    table = shipped_table("NVIDIA H200")
    assert {each.work.kind for each in table.rows} == {"linear", "experts"}
    assert shipped_table("another card") is None
