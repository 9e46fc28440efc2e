"""Weights under diffusers' names and the original release's, there and back; and from a run's checkpoint."""

import json

import pytest
import torch
from dit_toys.runs import run_toy, write_cache, write_model
from dit_toys.wan import FIRST_AND_LAST, IMAGE_TO_VIDEO, TINY, wan
from safetensors.torch import load_file, save_file

from loong_core.errors import UserError
from loong_core.parallel.context import ParallelContext
from loong_dit.convert import convert
from loong_dit.families.wan import WAN
from loong_dit.model import build_module, fill_module
from loong_dit.model_source import open_source

FILE = "diffusion_pytorch_model.safetensors"


def write_weights(folder, hf):
    module = wan(hf, torch.float32)
    tensors = {}
    for parameter, placement in WAN.weight_map(WAN.config(hf)).placements(module, ParallelContext.single()):
        for piece, values in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True):
            tensors[piece.name] = values.clone()
    write_model(folder, hf)
    save_file(tensors, folder / FILE)
    return tensors


@pytest.mark.parametrize("hf", [TINY, IMAGE_TO_VIDEO, FIRST_AND_LAST], ids=["text", "image", "first and last"])
def test_original_names_there_and_back_change_nothing(tmp_path, hf):
    tensors = write_weights(tmp_path / "model", hf)
    convert(tmp_path / "model", tmp_path / "original", names="original")
    original = load_file(tmp_path / "original" / FILE)
    assert original["blocks.1.norm3.weight"].equal(tensors["blocks.1.norm2.weight"])
    assert original["head.modulation"].equal(tensors["scale_shift_table"])
    assert original["blocks.0.cross_attn.o.bias"].equal(tensors["blocks.0.attn2.to_out.0.bias"])
    assert len(original) == len(tensors)
    assert json.loads((tmp_path / "original" / "config.json").read_text())["_class_name"] == "WanModel"
    convert(tmp_path / "original", tmp_path / "back")
    back = load_file(tmp_path / "back" / FILE)
    assert back.keys() == tensors.keys()
    assert all(back[name].equal(tensors[name]) for name in tensors)
    module = build_module(open_source(tmp_path / "original"), ParallelContext.single())
    fill_module(module, open_source(tmp_path / "original"), ParallelContext.single())
    for (_, own), (_, other) in zip(module.named_parameters(), wan(hf, torch.float32).named_parameters(), strict=True):
        assert own.equal(other)


def test_a_runs_checkpoint_gives_its_average_or_the_weights_themselves(tmp_path):
    model, cache = write_model(tmp_path / "model"), write_cache(tmp_path / "cache")
    run_toy(tmp_path / "run", model, cache)
    convert(tmp_path / "run", tmp_path / "averaged")
    convert(tmp_path / "run", tmp_path / "raw", raw=True)
    exported = load_file(tmp_path / "run" / "hf" / "transformer" / FILE)
    averaged, raw = load_file(tmp_path / "averaged" / FILE), load_file(tmp_path / "raw" / FILE)
    assert all(averaged[name].equal(exported[name]) for name in exported)
    assert not all(raw[name].equal(exported[name]) for name in exported)
    with pytest.raises(UserError, match=r"no checkpoint of step 3; it has 4"):
        convert(tmp_path / "run", tmp_path / "none", step=3)
