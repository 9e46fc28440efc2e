"""Loading a run file reports everything that is wrong with it, in words that say what to do."""

from typing import Annotated, Any

import pytest

from loong_core.config import REQUIRED, RunConfig, Section, load_run
from loong_core.errors import ConfigError


class SourceSection(Section):
    shorthand = "path"

    path: Annotated[str, REQUIRED] = ""
    weight: float = 1.0


class ModelSection(Section):
    shorthand = "source"

    source: Annotated[str, REQUIRED] = ""
    overrides: dict[str, Any] = {}  # noqa: RUF012


class Config(RunConfig):
    model: Annotated[ModelSection, REQUIRED] = ModelSection()
    sources: Annotated[list[SourceSection], REQUIRED] = []  # noqa: RUF012


def load(tmp_path, text, *overrides):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return load_run(Config, path, overrides)


def faults(tmp_path, text, *overrides):
    return [str(fault) for fault in load(tmp_path, text, *overrides).faults]


GOOD = "model: qwen3-0.6b\nsources: a.txt\noutput: runs/a\n"


def test_overrides_win_over_the_file_and_are_typed_as_yaml(tmp_path):
    loaded = load(tmp_path, GOOD + "train: {lr: 1e-3, steps: 5}\n", "train.lr=2e-4", "checkpoint.asynchronous=false")
    assert loaded.faults == []
    assert (loaded.config.train.lr, loaded.config.train.steps) == (2e-4, 5)
    assert loaded.config.checkpoint.asynchronous is False
    assert {"train.lr", "checkpoint.asynchronous", "model"} <= loaded.given


def test_a_number_in_scientific_notation_without_a_point_is_a_number(tmp_path):
    assert load(tmp_path, GOOD + "train: {lr: 1e-3}\n").config.train.lr == 1e-3


def test_plain_values_stand_for_their_sections(tmp_path):
    config = load(tmp_path, GOOD, "model.overrides.num_hidden_layers=2").config
    assert config.model == ModelSection(source="qwen3-0.6b", overrides={"num_hidden_layers": 2})
    assert config.sources == [SourceSection(path="a.txt")]
    config = load(tmp_path, GOOD, "sources=[b.txt, {path: c.txt, weight: 3.0}]", "sources.0={path: d.txt}").config
    assert config.sources == [SourceSection(path="d.txt"), SourceSection(path="c.txt", weight=3.0)]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("train.lrr=1e-3", "train.lr"),
        ("trian=1e-3", "train"),
        ("lr=1e-3", "train.lr"),
        ("layout.tensor_parallel=2", "layout.tensor"),
        ("model.sources=x", "model.source"),
        ("global_batchsize=2", "train.global_batch_size"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_valid_one(tmp_path, given, meant):
    (fault,) = faults(tmp_path, GOOD, given)
    assert given.split("=")[0] in fault
    assert f"did you mean {meant}?" in fault


def test_all_faults_are_reported_together(tmp_path):
    found = faults(tmp_path, "train: {steps: '10', lr: -1.0, schedule: cosin}\nsources: [{weight: 2.0}]\nlayuot: 3\n")
    said = "\n".join(found)
    assert len(found) == 7
    for part in (
        "train.steps: is '10'; input should be a valid integer",
        "train.lr: is -1.0; input should be greater than 0",
        "train.schedule: is 'cosin'; input should be 'cosine', 'linear', 'wsd' or 'constant'",
        "sources.0.path: is missing",
        "layuot: is not a key of a run file (did you mean layout?)",
        "output: is missing",
        "model: is missing",
    ):
        assert part in said


def test_a_key_given_twice_is_a_fault_that_names_both_lines(tmp_path):
    (fault,) = faults(tmp_path, GOOD + "train:\n  lr: 1e-3\n  steps: 3\n  lr: 2e-3\n")
    assert fault == "train.lr: is given twice, in lines 5 and 7 (keep one)"


def test_broken_yaml_names_file_and_line(tmp_path):
    with pytest.raises(ConfigError) as refused:
        faults(tmp_path, "model: [a,\noutput: b: c\n")
    (fault,) = refused.value.faults
    assert "run.yaml:2: is not YAML" in str(fault)


def test_a_missing_run_file_is_answered_with_the_nearest_name(tmp_path):
    (tmp_path / "tiny.yaml").write_text("")
    with pytest.raises(ConfigError) as refused:
        load_run(Config, tmp_path / "tyni.yaml")
    (fault,) = refused.value.faults
    assert "there is no file or folder" in fault.what
    assert "tiny.yaml" in fault.fix


@pytest.mark.parametrize("override", ["train.lr", "=3", "train.lr=[", "sources.7.path=x"])
def test_an_override_that_cannot_be_applied_is_a_fault(tmp_path, override):
    assert len(faults(tmp_path, GOOD, override)) == 1


def test_an_empty_section_has_its_defaults(tmp_path):
    assert load(tmp_path, GOOD + "layout:\n").config.layout.tensor == 1


def test_what_an_absent_or_empty_section_requires_is_missing_too(tmp_path):
    class Data(Section):
        train: Annotated[list[SourceSection], REQUIRED] = []  # noqa: RUF012

    class Whole(RunConfig):
        data: Data = Data()

    for given in ([], ["data=null"], ["data={}"], ["data.train=null"]):
        found = load_run(Whole, None, ["output=x", *given]).faults
        assert [str(fault) for fault in found] == ["data.train: is missing (add it: data.train=...)"], given


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["sources.1.pth=x"], "did you mean sources.1.path?"),
        (["sources.2.path=x"], "sources is a list of 2 (name an item, sources.0 to sources.1, or give sources whole)"),
        (["sources=null", "sources.0.path=x"], "sources is a list of 0 (give sources whole)"),
    ],
)
def test_an_item_of_a_list_is_spoken_of_by_its_number(tmp_path, given, words):
    assert words in "\n".join(faults(tmp_path, GOOD, "sources=[a.txt, b.txt]", *given))


def test_an_item_given_in_short_takes_an_override_of_one_of_its_keys(tmp_path):
    expected = [SourceSection(path="a.txt", weight=2.0)]
    assert load(tmp_path, GOOD, "sources.0.weight=2.0").config.sources == expected
    assert load(tmp_path, GOOD, "sources=[a.txt]", "sources.0.weight=2.0").config.sources == expected
