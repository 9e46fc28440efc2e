import json
import os

import pytest

from loong_core.data.sources import SourceSpec, resolve, weights_of
from loong_core.errors import UserError


def write(path, text="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_folder_stands_for_its_data_files_in_the_order_of_their_names(tmp_path):
    for name in ("b.jsonl", "a.txt", "deep/c.parquet", "README.md", ".hidden.txt", "_staged.txt", "notes.pdf"):
        write(tmp_path / name)
    files = resolve(str(tmp_path))
    assert [(file.path.name, file.format) for file in files] == [
        ("a.txt", "text"),
        ("b.jsonl", "jsonl"),
        ("c.parquet", "parquet"),
    ]


def test_a_glob_stands_for_the_files_it_matches(tmp_path):
    for name in ("train-1.jsonl", "train-0.jsonl", "test-0.jsonl"):
        write(tmp_path / name)
    assert [file.path.name for file in resolve(str(tmp_path / "train-*"))] == ["train-0.jsonl", "train-1.jsonl"]


def test_a_prefix_or_either_file_stands_for_a_bin_and_idx_pair(tmp_path):
    for name in ("corpus.bin", "corpus.idx"):
        write(tmp_path / name)
    for path in ("corpus", "corpus.bin", "corpus.idx", "."):
        (file,) = resolve(str(tmp_path / path))
        assert (file.path, file.format) == (tmp_path / "corpus", "indexed")


def test_half_of_a_pair_names_the_missing_half(tmp_path):
    write(tmp_path / "corpus.bin")
    with pytest.raises(UserError, match=r"corpus\.idx is missing, though corpus\.bin is there"):
        resolve(str(tmp_path / "corpus"))


def test_a_missing_file_is_named_with_the_nearest_that_exists(tmp_path):
    write(tmp_path / "corpus.jsonl")
    with pytest.raises(UserError, match=r"corpsu\.jsonl does not exist; the nearest name there is .*corpus\.jsonl"):
        resolve(str(tmp_path / "corpsu.jsonl"))
    with pytest.raises(UserError, match=r"does not exist; .* holds corpus\.jsonl"):
        resolve(str(tmp_path / "quite-another-name.json"))


def test_a_missing_relative_file_is_told_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=rf"missing\.jsonl does not exist; {os.path.realpath(tmp_path)} holds no file of format jsonl"
    ):
        resolve("missing.jsonl")


def test_a_glob_without_a_match_says_so(tmp_path):
    with pytest.raises(UserError, match=r"no file matches .*\*\.jsonl"):
        resolve(str(tmp_path / "*.jsonl"))


def test_an_unknown_ending_lists_the_known_ones(tmp_path):
    with pytest.raises(UserError, match=r"corpus\.csv: unknown format \.csv; known endings are .*\.jsonl"):
        resolve(str(write(tmp_path / "corpus.csv")))


def test_a_folder_without_data_says_what_it_holds(tmp_path):
    write(tmp_path / "table.csv")
    with pytest.raises(UserError, match=r"holds no data file \(table\.csv\)"):
        resolve(str(tmp_path))


def test_a_folder_of_several_splits_is_not_read_as_one(tmp_path):
    for name in ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"):
        write(tmp_path / name)
    with pytest.raises(UserError, match=r"holds several splits \(test, train\).*data/test\*\.parquet"):
        resolve(str(tmp_path))
    assert len(resolve(str(tmp_path / "data/train*.parquet"))) == 1


def test_a_saved_dataset_of_several_splits_lists_them(tmp_path):
    write(tmp_path / "dataset_dict.json", json.dumps({"splits": ["train", "validation"]}))
    with pytest.raises(UserError, match=r"2 splits; name one of them: .*/train, .*/validation"):
        resolve(str(tmp_path))


def test_a_saved_dataset_with_a_missing_file_names_it(tmp_path):
    write(tmp_path / "dataset_info.json", "{}")
    write(tmp_path / "state.json", json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    with pytest.raises(UserError, match=r"data-00000-of-00001\.arrow is missing, though .*state\.json lists it"):
        resolve(str(tmp_path))


def test_weights_are_for_all_sources_or_none():
    assert weights_of([SourceSpec("a"), SourceSpec("b")]) is None
    assert weights_of([SourceSpec("a", 1), SourceSpec("b", 0.5)]) == [1, 0.5]
    with pytest.raises(UserError, match="b has no weight, but other sources have one"):
        weights_of([SourceSpec("a", 1.0), SourceSpec("b")])
    with pytest.raises(UserError, match=r"a: weight 0\.0 is not a positive number"):
        weights_of([SourceSpec("a", 0.0)])
