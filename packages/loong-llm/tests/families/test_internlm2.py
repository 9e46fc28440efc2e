"""InternLM2, which transformers has no class for, against a plain reading of its published model."""

import dataclasses

import pytest
import torch
from plain_layers import causal_attention, norm
from plain_reading import assert_equal_to_plain, random_folder
from safetensors.torch import load_file
from torch.nn import functional as F

from loong_core.errors import ConfigError, UserError
from loong_core.nn.decoder import Decoder
from loong_core.nn.lora import apply_lora
from loong_core.nn.lora_settings import LoraSettings
from loong_core.parallel.context import Axis, ParallelContext
from loong_llm.convert import convert
from loong_llm.families.internlm2 import INTERNLM2

HIDDEN, HEADS, KV_HEADS, WIDTH, LAYERS, VOCABULARY = 24, 6, 2, 12, 2, 61
GROUP, SIZE = HEADS // KV_HEADS, HIDDEN // HEADS
HF = {
    "model_type": "internlm2",
    "architectures": ["InternLM2ForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000,
    "rope_scaling": {"type": "dynamic", "factor": 2.0},
    "bias": False,
}


def shapes(bias):
    found = {
        "model.tok_embeddings.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "output.weight": (VOCABULARY, HIDDEN),
    }
    rows = (HEADS + 2 * KV_HEADS) * SIZE
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        found |= {
            f"{name}attention_norm.weight": (HIDDEN,),
            f"{name}attention.wqkv.weight": (rows, HIDDEN),
            f"{name}attention.wo.weight": (HIDDEN, HIDDEN),
            f"{name}ffn_norm.weight": (HIDDEN,),
            f"{name}feed_forward.w1.weight": (WIDTH, HIDDEN),
            f"{name}feed_forward.w2.weight": (HIDDEN, WIDTH),
            f"{name}feed_forward.w3.weight": (WIDTH, HIDDEN),
        }
        if bias:
            found |= {f"{name}attention.wqkv.bias": (rows,), f"{name}attention.wo.bias": (HIDDEN,)}
    return found


def plain_logits(weights, tokens):
    x = weights["model.tok_embeddings.weight"][tokens]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        w = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
        qkv = norm(x, w["attention_norm.weight"]) @ w["attention.wqkv.weight"].T + w.get("attention.wqkv.bias", 0.0)
        groups = qkv.view(len(tokens), KV_HEADS, GROUP + 2, SIZE)
        q, k, v = groups[:, :, :GROUP].flatten(1, 2), groups[:, :, GROUP], groups[:, :, GROUP + 1]
        mixed = causal_attention(q, k, v, theta=1000)
        x = x + mixed @ w["attention.wo.weight"].T + w.get("attention.wo.bias", 0.0)
        y = norm(x, w["ffn_norm.weight"])
        x = (
            x
            + (F.silu(y @ w["feed_forward.w1.weight"].T) * (y @ w["feed_forward.w3.weight"].T))
            @ w["feed_forward.w2.weight"].T
        )
    return norm(x, weights["model.norm.weight"]) @ weights["output.weight"].T


@pytest.fixture(params=[False, True], ids=["no bias", "bias"])
def folder(request, tmp_path):
    return random_folder(tmp_path, HF | {"bias": request.param}, shapes(request.param))


def test_logits_loss_and_every_gradient_equal_a_plain_reading(folder):
    assert_equal_to_plain(*folder, plain_logits)


def test_a_folder_is_read_and_written_bit_by_bit(folder, tmp_path_factory):
    path, _ = folder
    written = tmp_path_factory.mktemp("out") / "model"
    convert(path, written)
    stored, again = load_file(path / "model.safetensors"), load_file(written / "model.safetensors")
    assert stored.keys() == again.keys()
    assert all(torch.equal(again[name], stored[name]) for name in stored)


@pytest.mark.parametrize("ranks", [1, 3, 6])
def test_tensor_ranks_hold_whole_groups_or_parts_of_them(ranks):
    """Together they hold each row of `wqkv`, a key or value once for each rank that needs it."""
    config = INTERNLM2.decoder_config(HF | {"num_attention_heads": 12, "num_key_value_heads": 3, "hidden_size": 48})
    held: list[int] = []
    for rank in range(ranks):
        context = dataclasses.replace(ParallelContext.single("meta"), tensor=Axis(None, rank, ranks))
        for parameter, placement in INTERNLM2.weight_map(config).placements(Decoder(config, context), context):
            assert placement.shape == parameter.shape
            held += [
                row
                for piece in placement.pieces
                if piece.name == "model.layers.1.attention.wqkv.weight"
                for row in range(piece.offsets[0], piece.offsets[0] + piece.sizes[0])
            ]
    assert sorted(set(held)) == list(range(18 * 4))
    assert len(held) == 18 * 4 + (6 * 4 if ranks == 6 else 0)


def test_lora_on_a_joined_projection_that_tensor_ranks_hold_in_two_parts_is_refused():
    config = INTERNLM2.decoder_config(HF)
    context = dataclasses.replace(ParallelContext.single(), tensor=Axis(None, 0, 6))
    stage = Decoder(config, context)
    with pytest.raises(UserError, match=r"model\.layers\.0\.attention\.wqkv .*layout\.tensor=6"):
        apply_lora([stage], INTERNLM2.weight_map(config), LAYERS, context, LoraSettings(targets=("wqkv",), rank=2))


def test_heads_that_do_not_divide_the_width_are_a_fault():
    with pytest.raises(ConfigError, match="num_attention_heads: 5 does not divide hidden_size 24"):
        INTERNLM2.decoder_config(HF | {"num_attention_heads": 5, "num_key_value_heads": 5})
