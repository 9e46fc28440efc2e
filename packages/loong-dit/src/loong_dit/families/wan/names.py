"""What a Wan transformer's weights are called: in diffusers' folders, and in the original release."""

from __future__ import annotations

import re

from loong_core.checkpoint.weight_map import Rule, Span, WeightMap
from loong_dit.families.wan.config import WanConfig

_ORIGINAL = (
    (r"condition_embedder\.time_embedder\.linear_1", "time_embedding.0"),
    (r"condition_embedder\.time_embedder\.linear_2", "time_embedding.2"),
    (r"condition_embedder\.time_proj", "time_projection.1"),
    (r"condition_embedder\.text_embedder\.linear_1", "text_embedding.0"),
    (r"condition_embedder\.text_embedder\.linear_2", "text_embedding.2"),
    (r"condition_embedder\.image_embedder\.pos_embed", "img_emb.emb_pos"),
    (r"condition_embedder\.image_embedder\.norm1", "img_emb.proj.0"),
    (r"condition_embedder\.image_embedder\.ff\.net\.0\.proj", "img_emb.proj.1"),
    (r"condition_embedder\.image_embedder\.ff\.net\.2", "img_emb.proj.3"),
    (r"condition_embedder\.image_embedder\.norm2", "img_emb.proj.4"),
    (r"\.attn1\.", ".self_attn."),
    (r"\.attn2\.", ".cross_attn."),
    (r"\.to_([qkv])\b", r".\1"),
    (r"\.to_out\.0\b", ".o"),
    (r"\.add_([kv])_proj\b", r".\1_img"),
    (r"\.norm_added_k\b", ".norm_k_img"),
    (r"\.ffn\.net\.0\.proj\b", ".ffn.0"),
    (r"\.ffn\.net\.2\b", ".ffn.2"),
    (
        r"^(blocks\..*)\.norm2\b",
        r"\1.norm3",
    ),  # the norm before cross-attention: the original's third, diffusers' second
    (r"^scale_shift_table$", "head.modulation"),
    (r"\bscale_shift_table$", "modulation"),
    (r"^proj_out\b", "head.head"),
)


def original_name(name: str) -> str:
    """The name in Wan's own release of a tensor that diffusers calls `name`."""
    for pattern, replacement in _ORIGINAL:
        name = re.sub(pattern, replacement, name)
    return name


def weight_map(config: WanConfig) -> WeightMap:
    """The module's parameters in terms of diffusers' tensors."""
    width, ffn, text, freq = config.width, config.ffn_dim, config.text_dim, config.freq_dim
    layers = range(config.num_layers)
    embedder = "condition_embedder"
    patch = (width, config.in_channels, *config.patch_size)
    rules = [
        Rule("patch_embedding.weight", Span("patch_embedding.weight", patch)),
        Rule("patch_embedding.bias", Span("patch_embedding.bias", (width,))),
        *_linear("time.embedder.linear_1", f"{embedder}.time_embedder.linear_1", width, freq),
        *_linear("time.embedder.linear_2", f"{embedder}.time_embedder.linear_2", width, width),
        *_linear("time.projection", f"{embedder}.time_proj", 6 * width, width),
        Rule("time.table", *(Span(f"blocks.{layer}.scale_shift_table", (1, 6, width)) for layer in layers)),
        Rule("time.last_table", Span("scale_shift_table", (1, 2, width))),
        *_linear("text.linear_1", f"{embedder}.text_embedder.linear_1", width, text),
        *_linear("text.linear_2", f"{embedder}.text_embedder.linear_2", width, width),
        *_linear("proj_out", "proj_out", config.patch_out, width),
    ]
    if config.image_dim is not None:
        inputs, theirs = config.image_dim, f"{embedder}.image_embedder"
        rules += [
            *_vector("image.norm1", f"{theirs}.norm1", inputs, bias=True),
            *_linear("image.linear_1", f"{theirs}.ff.net.0.proj", inputs, inputs),
            *_linear("image.linear_2", f"{theirs}.ff.net.2", width, inputs),
            *_vector("image.norm2", f"{theirs}.norm2", width, bias=True),
        ]
        if config.pos_embed_seq_len is not None:
            shape = (1, config.pos_embed_seq_len, inputs)
            rules.append(Rule("image.positions", Span(f"{theirs}.pos_embed", shape)))
    ours, theirs = "layers.{layer}", "blocks.{layer}"
    for attention, number in (("self_attention", 1), ("cross_attention", 2)):
        own, other = f"{ours}.{attention}", f"{theirs}.attn{number}"
        names = [f"{other}.to_{letter}" for letter in "qkv"]
        if number == 1:
            rules += _joined(f"{own}.qkv", names, width)
        else:
            rules += [*_linear(f"{own}.query", names[0], width, width), *_joined(f"{own}.key_value", names[1:], width)]
        rules += [
            *_vector(f"{own}.query_norm", f"{other}.norm_q", width),
            *_vector(f"{own}.key_norm", f"{other}.norm_k", width),
            *_linear(f"{own}.output", f"{other}.to_out.0", width, width),
        ]
    if config.image_dim is not None:
        own, other = f"{ours}.cross_attention", f"{theirs}.attn2"
        rules += _joined(f"{own}.image_key_value", [f"{other}.add_k_proj", f"{other}.add_v_proj"], width)
        rules += _vector(f"{own}.image_key_norm", f"{other}.norm_added_k", width)
    if config.cross_attn_norm:
        rules += _vector(f"{ours}.cross_norm", f"{theirs}.norm2", width, bias=True)
    rules += _linear(f"{ours}.up", f"{theirs}.ffn.net.0.proj", ffn, width)
    rules += _linear(f"{ours}.down", f"{theirs}.ffn.net.2", width, ffn)
    return WeightMap(rules)


def _linear(ours: str, theirs: str, outputs: int, inputs: int) -> list[Rule]:
    return [
        Rule(f"{ours}.weight", Span(f"{theirs}.weight", (outputs, inputs))),
        Rule(f"{ours}.bias", Span(f"{theirs}.bias", (outputs,))),
    ]


def _joined(ours: str, theirs: list[str], width: int) -> list[Rule]:
    """Square matrices, one below the other in one of ours."""
    return [
        Rule(f"{ours}.weight", *(Span(f"{name}.weight", (width, width)) for name in theirs)),
        Rule(f"{ours}.bias", *(Span(f"{name}.bias", (width,)) for name in theirs)),
    ]


def _vector(ours: str, theirs: str, size: int, *, bias: bool = False) -> list[Rule]:
    kinds = ("weight", "bias") if bias else ("weight",)
    return [Rule(f"{ours}.{kind}", Span(f"{theirs}.{kind}", (size,))) for kind in kinds]
