"""Folders are opened by their headers, boxes are read alone, and faults name file, tensor and numbers."""

import json

import pytest
import torch
from safetensors.torch import save_file

from loong_core.checkpoint.hf_reader import HFFolder, WeightsError
from loong_core.checkpoint.pieces import Piece
from loong_core.errors import UserError

MATRIX = torch.arange(24, dtype=torch.float32).reshape(6, 4)


@pytest.fixture
def folder(tmp_path):
    """Two files and their index."""
    (tmp_path / "config.json").write_text('{"model_type": "toy"}')
    save_file({"a": MATRIX}, tmp_path / "one.safetensors")
    save_file({"b": MATRIX.bfloat16(), "c": torch.zeros(3)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def faults(path, expected=None):
    with pytest.raises(WeightsError) as caught:
        HFFolder(path).check({"a": (6, 4), "b": (6, 4), "c": (3,)} if expected is None else expected)
    return [str(fault) for fault in caught.value.faults]


def test_a_box_is_read_in_its_stored_dtype(folder):
    opened = HFFolder(folder)
    assert torch.equal(opened.read(Piece("a", (6, 4), (2, 1), (3, 2))), MATRIX[2:5, 1:3])
    assert torch.equal(opened.read(Piece.whole("b", (6, 4))), MATRIX.bfloat16())
    assert opened.read(Piece("a", (6, 4), (6, 0), (0, 4))).shape == (0, 4)


def test_reading_a_box_touches_no_more_of_the_file_than_its_pages(tmp_path):
    """Of a file too large for the host's memory."""
    rows, width = 2**28, 2**10
    header = json.dumps({"a": {"dtype": "F32", "shape": [rows, width], "data_offsets": [0, rows * width * 4]}}).encode()
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + rows * width * 4)  # 1 TiB without blocks on disk
    values = HFFolder(tmp_path).read(Piece("a", (rows, width), (rows - 2, 0), (2, width)))
    assert values.shape == (2, width)
    assert not values.any()


def test_a_folder_that_fits_passes(folder):
    HFFolder(folder).check({"a": (6, 4), "b": (6, 4), "c": (3,)})


def test_tensors_that_may_be_there_are_checked_for_shape_only_if_they_are(folder):
    HFFolder(folder).check({"a": (6, 4), "b": (6, 4)}, optional={"c": (3,), "d": (9,)})
    HFFolder(folder).check({"a": (6, 4)}, harmless=["[bc]"])
    with pytest.raises(WeightsError, match=r"c is \[3\], by config\.json it is \[4\]"):
        HFFolder(folder).check({"a": (6, 4), "b": (6, 4)}, optional={"c": (4,)})


def test_missing_extra_and_wrong_shaped_tensors_are_told_together(folder):
    found = faults(folder, {"a": (6, 5), "b": (6, 4), "d": (2,)})
    assert found == [
        f"{folder / 'one.safetensors'}: a is [6, 4], by config.json it is [6, 5] (is config.json of this model?)",
        f"{folder / 'two.safetensors'}: c [3] is not a tensor of the model that config.json describes "
        "(is config.json of this model?)",
        f"{folder}: d [2] is missing (is config.json of this model?)",
    ]


def test_a_truncated_file_is_told_with_its_sizes_and_the_first_tensor_lost(folder):
    file = folder / "two.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.truncate(size - 5)
    (fault,) = faults(folder)
    assert f"{file}: truncated: {size - 5} bytes where its header promises {size}, from " in fault


def test_a_file_cut_within_its_header_is_told(folder):
    file = folder / "one.safetensors"
    with file.open("r+b") as stream:
        stream.truncate(20)
    assert any(f"{file}: its 20 bytes end within the header" in fault for fault in faults(folder))


def test_a_file_that_is_no_safetensors_is_told(folder):
    file = folder / "one.safetensors"
    file.write_bytes((4).to_bytes(8, "little") + b"nope")
    assert any("its header is not one of safetensors" in fault for fault in faults(folder))


def test_a_file_of_the_index_that_is_missing_is_told_with_what_was_in_it(folder):
    (folder / "two.safetensors").unlink()
    found = faults(folder)
    assert found[0].endswith("two.safetensors: is missing; model.safetensors.index.json places 2 tensors in it")


def test_a_tensor_that_the_index_places_in_the_wrong_file_is_told(folder):
    save_file({"b": MATRIX.bfloat16()}, folder / "two.safetensors")
    assert any(
        "c is not in it, though model.safetensors.index.json places it there" in fault for fault in faults(folder)
    )


def test_a_tensor_stored_in_integers_is_refused(folder):
    save_file({"a": MATRIX.to(torch.int8)}, folder / "one.safetensors")
    assert any("a is stored as I8; BF16, F16, F32, F64 are read" in fault for fault in faults(folder))


def test_numbers_that_are_not_finite_are_counted(folder):
    opened, piece = HFFolder(folder), Piece("a", (6, 4), (2, 0), (2, 4))
    values = opened.read(piece)
    assert opened.not_finite(piece, values) is None
    values[0, 0], values[1, 1:3] = float("nan"), float("-inf")
    fault = str(opened.not_finite(piece, values))
    assert f"{folder / 'one.safetensors'}: a in (2, 4) at (2, 0) has 1 NaN and 2 Inf among 8 numbers" in fault


def test_a_folder_without_an_index_may_hold_several_files(folder):
    (folder / "model.safetensors.index.json").unlink()
    assert HFFolder(folder).tensors.keys() == {"a", "b", "c"}
    save_file({"a": MATRIX}, folder / "three.safetensors")
    assert any("a is also in one.safetensors" in str(fault) for fault in faults(folder))


def test_a_config_that_is_no_object_is_told(tmp_path):
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UserError, match=r"config\.json holds a list, not a JSON object"):
        HFFolder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        HFFolder(tmp_path)
