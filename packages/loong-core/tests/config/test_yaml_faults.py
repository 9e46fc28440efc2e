"""Run files that are no run files are told so, whatever is in them."""

import pytest

from loong_core.config.loading import load_run
from loong_core.config.sections import RunConfig
from loong_core.errors import ConfigError


def refusal(path):
    with pytest.raises(ConfigError) as caught:
        load_run(RunConfig, path)
    return str(caught.value)


def test_a_file_that_is_not_utf8_is_named_with_the_byte(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"output: r\xe9sultats\n")
    assert f"{path}: is not a text file in UTF-8 (byte 9 is 0xe9)" in refusal(path)


def test_a_control_character_is_not_yaml(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"output: a\x00b\n")
    assert "is not YAML" in refusal(path)


def test_an_alias_inside_what_it_names_is_refused(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("kernels: &k {a: *k}\n")
    assert "an alias is inside what it names" in refusal(path)


def test_aliases_of_aliases_are_looked_at_once(tmp_path):
    path = tmp_path / "run.yaml"
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 8))
    path.write_text("l0: &l0 [x]\n" + levels)
    assert any(fault.where == "l7" for fault in load_run(RunConfig, path).faults)


def test_several_merge_keys_are_no_key_given_twice(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("kernels:\n  <<: &a {x: one}\n  <<: {y: two}\noutput: x\ntrain: {steps: 1}\n")
    loaded = load_run(RunConfig, path)
    assert loaded.faults == []
    assert loaded.config.kernels == {"x": "one", "y": "two"}


def test_a_list_is_no_key(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("output: x\n? [1, 2]\n: 3\n")
    assert f"{path}:2: is not YAML: a key is plain text" in refusal(path)
