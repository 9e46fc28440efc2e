"""The transformers library: its Qwen-VL classes on packed samples, compiled layers (of experts the rest of a layer).

Samples are packed as transformers packs them: positions that begin anew part them, by flash attention's lengths, a
block mask of flex attention, or SDPA's dense mask. Its vision tower has flash attention, or SDPA frame by frame.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tools.bench.vlm_stacks.work import Work

NOTE = "bf16 weights, gradients and moments"
ATTENTIONS = {
    "flash": ("flash_attention_2", "flash_attn"),
    "flex": ("flex_attention", "torch"),
    "sdpa": ("sdpa", "torch"),
}


def missing(attention: str) -> str:
    """What a form of attention lacks here; empty where it can run."""
    module = ATTENTIONS[attention][1]
    return "" if find_spec(module) else f"{module} is not installed"


def make_model(work: Work, attention: str, weights: Path | None = None) -> nn.Module:
    """The model, with fresh weights or a folder's."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    name = ATTENTIONS[attention][0]
    forms = {"text_config": name, "vision_config": "sdpa" if attention == "flex" else name}
    dtype = torch.float32 if work.device == "cpu" else torch.bfloat16
    if weights is not None:
        found: Any = AutoModelForImageTextToText.from_pretrained(weights, dtype=dtype, attn_implementation=forms)
        return found.to(work.device)
    hf = dict(work.hf_config)
    config = AutoConfig.for_model(str(hf.pop("model_type")), **hf)
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    with torch.device(work.device):
        model = AutoModelForImageTextToText.from_config(config, attn_implementation=forms)
    torch.set_default_dtype(torch.float32)
    return model


def build(work: Work, weights: Path | None, options: Any) -> Callable[[int], float]:
    """A step, by the loss of its batches."""
    model: Any = make_model(work, options.attention, weights)
    model.train()
    if options.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if options.compile:
        _compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, betas=(0.9, 0.95), fused=True)

    def step(number: int) -> float:
        batches = work.batches(number)
        trained = sum(int((batch.labels >= 0).sum()) for batch in batches)
        total = torch.zeros((), device=work.device)
        for batch in batches:
            text = batch.text.to(work.device)
            apart = _places_in_samples(batch.text.cu_seqlens).to(work.device)
            positions = torch.cat([apart[:, None], text.position_ids], dim=1).T[:, None]  # [4, 1, tokens]
            inputs: dict[str, Any] = {}
            if batch.pictures.count:
                inputs["pixel_values"] = batch.pictures.patches.to(work.device, next(model.parameters()).dtype)
                inputs["image_grid_thw"] = batch.pictures.grid_thw.to(work.device)
            loss = model(
                input_ids=text.tokens[None],
                position_ids=positions,
                labels=text.labels[None],
                shift_labels=text.labels[None],
                num_items_in_batch=trained,
                use_cache=False,
                **inputs,
            ).loss
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(total)

    return step


def _places_in_samples(bounds: Tensor) -> Tensor:
    """Of each token its place in its sample."""
    lengths = bounds.diff()
    return torch.arange(int(bounds[-1])) - torch.repeat_interleave(bounds[:-1], lengths)


def _compile(model: Any) -> None:
    """Layers of the language model, or what is not experts of them; feed-forwards and norms of the tower."""
    for layer in model.model.language_model.layers:
        if hasattr(layer.mlp, "experts"):
            layer.self_attn.compile()
            layer.input_layernorm.compile()
            layer.post_attention_layernorm.compile()
        else:
            layer.compile()
    for block in model.model.visual.blocks:
        block.mlp.compile()
        block.norm1.compile()
        block.norm2.compile()
