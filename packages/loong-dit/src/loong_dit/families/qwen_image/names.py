"""What a Qwen-Image transformer's weights are called; the original release is in diffusers' form."""

from __future__ import annotations

from loong_core.checkpoint.weight_map import Rule, Span, WeightMap
from loong_dit.families.qwen_image.config import FREQ_DIM, QwenImageConfig


def original_name(name: str) -> str:
    """The same name."""
    return name


def weight_map(config: QwenImageConfig) -> WeightMap:
    """The module's parameters in terms of diffusers' tensors."""
    width, head = config.width, config.attention_head_dim
    embedder = "time_text_embed.timestep_embedder"
    rules = [
        *_linear("image_in", "img_in", width, config.patch_elements),
        Rule("text_norm.weight", Span("txt_norm.weight", (config.text_dim,))),
        *_linear("text_in", "txt_in", width, config.text_dim),
        *_linear("time.linear_1", f"{embedder}.linear_1", width, FREQ_DIM),
        *_linear("time.linear_2", f"{embedder}.linear_2", width, width),
        *_linear("last_modulation", "norm_out.linear", 2 * width, width),
        *_linear("proj_out", "proj_out", config.patch_elements, width),
    ]
    block = "transformer_blocks.{layer}"
    streams = (
        ("image", "img", ("to_q", "to_k", "to_v"), "to_out.0", ("norm_q", "norm_k")),
        ("text", "txt", ("add_q_proj", "add_k_proj", "add_v_proj"), "to_add_out", ("norm_added_q", "norm_added_k")),
    )
    for ours, theirs, projections, output, norms in streams:
        own = f"layers.{{layer}}.{ours}"
        spans = [(f"{block}.attn.{name}.weight", f"{block}.attn.{name}.bias") for name in projections]
        rules += [
            *_linear(f"{own}.modulation", f"{block}.{theirs}_mod.1", 6 * width, width),
            Rule(f"{own}.qkv.weight", *(Span(weight, (width, width)) for weight, _ in spans)),
            Rule(f"{own}.qkv.bias", *(Span(bias, (width,)) for _, bias in spans)),
            Rule(f"{own}.query_norm.weight", Span(f"{block}.attn.{norms[0]}.weight", (head,))),
            Rule(f"{own}.key_norm.weight", Span(f"{block}.attn.{norms[1]}.weight", (head,))),
            *_linear(f"{own}.output", f"{block}.attn.{output}", width, width),
            *_linear(f"{own}.up", f"{block}.{theirs}_mlp.net.0.proj", 4 * width, width),
            *_linear(f"{own}.down", f"{block}.{theirs}_mlp.net.2", width, 4 * width),
        ]
    return WeightMap(rules)


def _linear(ours: str, theirs: str, outputs: int, inputs: int) -> list[Rule]:
    return [
        Rule(f"{ours}.weight", Span(f"{theirs}.weight", (outputs, inputs))),
        Rule(f"{ours}.bias", Span(f"{theirs}.bias", (outputs,))),
    ]
