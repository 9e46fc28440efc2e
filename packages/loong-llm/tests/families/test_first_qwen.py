"""The first Qwen, which transformers has no class for, against a plain reading of its published model."""

import json

import pytest
import torch
from plain_layers import causal_attention, norm
from safetensors.torch import save_file
from torch.nn import functional as F
from toy_models import batch_of, named_gradients

from loong_core.errors import ConfigError
from loong_core.parallel.context import ParallelContext
from loong_llm.families.qwen import QWEN
from loong_llm.model import build_stages, open_model

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
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3 for name, shape in shapes().items()
    }
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(HF))
    return tmp_path, {name: tensor.requires_grad_() for name, tensor in weights.items()}


def test_logits_loss_and_every_gradient_equal_a_plain_reading(folder):
    path, weights = folder
    context = ParallelContext.single()
    source = open_model(path)
    (ours,) = build_stages(source, context, dtype=torch.float64)
    lengths = [7, 1, 12]
    batch = batch_of(lengths, VOCABULARY)

    logits = torch.cat([plain_logits(weights, sequence) for sequence in batch.tokens.split(lengths)])
    losses = F.cross_entropy(logits, batch.labels, reduction="none")
    losses.sum().backward()
    torch.testing.assert_close(ours.logits(batch), logits, rtol=1e-10, atol=1e-12)
    found = ours(batch)
    found.sum().backward()

    torch.testing.assert_close(found, losses, rtol=1e-10, atol=1e-12)
    expected = {name: tensor.grad for name, tensor in weights.items()}
    torch.testing.assert_close(named_gradients(ours, source.weight_map, context), expected, rtol=1e-10, atol=1e-12)


def test_the_feed_forward_is_half_as_wide_as_intermediate_size_says():
    assert QWEN.decoder_config(HF).feed_forward.intermediate_size == WIDTH
    with pytest.raises(ConfigError, match=r"intermediate_size: is 41 \(it is twice the feed-forward's width"):
        QWEN.decoder_config(HF | {"intermediate_size": 41})
