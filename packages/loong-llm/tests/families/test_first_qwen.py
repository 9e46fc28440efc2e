"""The first Qwen, which transformers has no class for, against a plain reading of its published model."""

import pytest
from plain_layers import causal_attention, norm
from plain_reading import assert_equal_to_plain, random_folder
from torch.nn import functional as F

from loong_core.errors import ConfigError
from loong_llm.families.qwen import QWEN

HIDDEN, HEADS, WIDTH, LAYERS, VOCABULARY = 24, 3, 20, 2, 61
HF = {
    "model_type": "qwen",
    "architectures": ["QWenLMHeadModel"],
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "kv_channels": HIDDEN // HEADS,
    "vocab_size": VOCABULARY,
    "layer_norm_epsilon": 1e-6,
    "rotary_emb_base": 10000,
    "no_bias": True,
}


def shapes():
    found = {
        "transformer.wte.weight": (VOCABULARY, HIDDEN),
        "transformer.ln_f.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        name = f"transformer.h.{layer}."
        found |= {
            f"{name}ln_1.weight": (HIDDEN,),
            f"{name}attn.c_attn.weight": (3 * HIDDEN, HIDDEN),
            f"{name}attn.c_attn.bias": (3 * HIDDEN,),
            f"{name}attn.c_proj.weight": (HIDDEN, HIDDEN),
            f"{name}ln_2.weight": (HIDDEN,),
            f"{name}mlp.w1.weight": (WIDTH, HIDDEN),
            f"{name}mlp.w2.weight": (WIDTH, HIDDEN),
            f"{name}mlp.c_proj.weight": (HIDDEN, WIDTH),
        }
    return found


def plain_logits(weights, tokens):
    x = weights["transformer.wte.weight"][tokens]
    length = len(tokens)
    for layer in range(LAYERS):
        w = {
            name.removeprefix(f"transformer.h.{layer}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"transformer.h.{layer}.")
        }
        qkv = norm(x, w["ln_1.weight"]) @ w["attn.c_attn.weight"].T + w["attn.c_attn.bias"]
        q, k, v = (part.view(length, HEADS, -1) for part in qkv.split(HIDDEN, dim=-1))
        x = x + causal_attention(q, k, v) @ w["attn.c_proj.weight"].T
        y = norm(x, w["ln_2.weight"])
        x = x + (y @ w["mlp.w1.weight"].T * F.silu(y @ w["mlp.w2.weight"].T)) @ w["mlp.c_proj.weight"].T
    return norm(x, weights["transformer.ln_f.weight"]) @ weights["lm_head.weight"].T


@pytest.fixture
def folder(tmp_path):
    return random_folder(tmp_path, HF, shapes())


def test_logits_loss_and_every_gradient_equal_a_plain_reading(folder):
    assert_equal_to_plain(*folder, plain_logits)


def test_the_feed_forward_is_half_as_wide_as_intermediate_size_says():
    assert QWEN.decoder_config(HF).feed_forward.intermediate_size == WIDTH
    with pytest.raises(ConfigError, match=r"intermediate_size: is 41 \(it is twice the feed-forward's width"):
        QWEN.decoder_config(HF | {"intermediate_size": 41})
