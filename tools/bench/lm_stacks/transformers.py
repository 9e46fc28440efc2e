"""The transformers library: its Qwen3 classes, SDPA on cuDNN, compiled layers (eager for experts), fused AdamW."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tools.bench.lm_stacks.work import Work


def build(work: Work) -> Callable[[Tensor], float]:
    """One step on `[microbatches, batch, sequence + 1]` token ids, returning the loss."""
    from transformers import AutoConfig, AutoModelForCausalLM

    hf = work.shape.hf_config(work.sequence)
    config = AutoConfig.for_model(str(hf.pop("model_type")), **hf, use_cache=False)
    torch.set_default_dtype(torch.float32 if work.device == "cpu" else torch.bfloat16)
    with torch.device(work.device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    model.train()
    if not work.shape.experts and work.device != "cpu":
        for layer in model.model.layers:
            layer.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]

    def step(ids: Tensor) -> float:
        total = torch.zeros((), device=work.device)
        with sdpa_kernel(backends, set_priority=True):
            for rows in ids:
                # transformers shifts labels itself.
                loss = model(input_ids=rows[:, :-1], labels=rows[:, :-1]).loss / len(ids)
                loss.backward()
                total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(total)

    return step


def memory_note() -> str:
    """What the optimizer keeps."""
    return "bf16 weights, gradients and moments"
