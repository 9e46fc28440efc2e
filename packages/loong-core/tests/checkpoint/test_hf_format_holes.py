"""A safetensors header whose tensors do not lie one after the other is refused."""

import json

import pytest
import torch
from safetensors.torch import save_file

from loong_core.checkpoint.hf_format import read_header
from loong_core.checkpoint.hf_reader import HFFolder
from loong_core.errors import UserError


@pytest.fixture
def folder(tmp_path):
    save_file({"a": torch.ones(4), "b": torch.ones(4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path


def move(folder, name, offsets):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header[name]["data_offsets"] = offsets
    text = json.dumps(header).encode().ljust(length)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize("offsets", [[-16, 0], [0, 16]])
def test_a_tensor_before_the_data_or_over_another_is_named(folder, offsets):
    move(folder, "b", offsets)
    _, faults = read_header(folder / "model.safetensors")
    assert any("begins at byte" in str(fault) for fault in faults)


def test_an_index_that_leads_out_of_its_folder_is_refused(folder):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    with pytest.raises(UserError, match="beside it"):
        _ = HFFolder(folder).tensors
