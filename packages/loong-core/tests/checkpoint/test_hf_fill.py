"""Tensors of any dtype and form are filled with boxes of files, in runs, and numbers that are not finite are found."""

import pytest
import torch
from safetensors.torch import save_file

from loong_core.checkpoint import hf_fill
from loong_core.checkpoint.hf_reader import HFFolder, WeightsError
from loong_core.checkpoint.pieces import Piece

MATRIX = torch.arange(96, dtype=torch.float32).reshape(8, 12)
EXPERTS = torch.arange(120, dtype=torch.float32).reshape(3, 5, 8).bfloat16()


@pytest.fixture(params=["runs of two rows", "one run"])
def folder(request, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    save_file({"matrix": MATRIX, "experts": EXPERTS}, tmp_path / "model.safetensors")
    if request.param != "one run":
        monkeypatch.setattr(hf_fill, "RUN_BYTES", 2 * 12 * 4)
    return HFFolder(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("offsets", "sizes"),
    [((0, 0), (8, 12)), ((3, 0), (5, 12)), ((2, 4), (5, 6)), ((7, 1), (1, 3)), ((1, 0), (0, 12))],
    ids=["whole", "rows", "a box", "part of a row", "nothing"],
)
def test_a_box_is_what_a_slice_is(folder, offsets, sizes, dtype):
    piece = Piece("matrix", (8, 12), offsets, sizes)
    lying, standing = torch.full(sizes, -1.0, dtype=dtype), torch.full(sizes[::-1], -1.0, dtype=dtype).T
    assert hf_fill.fill(folder, [(piece, lying), (piece, standing)]) == []
    expected = MATRIX[piece.slices].to(dtype)
    assert torch.equal(lying, expected)
    assert torch.equal(standing, expected)


def test_one_of_stacked_experts_is_read_into_its_rows(folder):
    parameter = torch.nn.Parameter(torch.zeros(2, 5, 8, dtype=torch.bfloat16))
    with torch.no_grad():
        wanted = [(Piece("experts", (3, 5, 8), (n, 0, 0), (1, 5, 8)), parameter[n - 1].unsqueeze(0)) for n in (1, 2)]
        hf_fill.fill(folder, wanted)
    assert torch.equal(parameter, EXPERTS[1:])


def test_each_box_with_numbers_that_are_not_finite_is_told_once(tmp_path, monkeypatch):
    monkeypatch.setattr(hf_fill, "RUN_BYTES", 12 * 4)
    broken = MATRIX.clone()
    broken[1, 1], broken[5, 2] = float("nan"), float("inf")
    (tmp_path / "config.json").write_text("{}")
    save_file({"matrix": MATRIX, "broken": broken}, tmp_path / "model.safetensors")
    pieces = [Piece("matrix", (8, 12), (0, 0), (8, 12)), Piece("broken", (8, 12), (1, 0), (6, 12))]
    found = hf_fill.fill(HFFolder(tmp_path), [(piece, torch.empty(piece.sizes)) for piece in pieces])
    assert found == pieces[1:]


def test_a_file_that_grew_shorter_since_it_was_opened_is_named(folder):
    assert folder.tensors
    file = folder.path / "model.safetensors"
    with file.open("r+b") as stream:
        stream.truncate(folder.tensors["matrix"].begin + 100)
    with pytest.raises(WeightsError, match=rf"{file}: ends at byte \d+, within matrix; it was longer"):
        hf_fill.fill(folder, [(Piece.whole("matrix", (8, 12)), torch.empty(8, 12))])
