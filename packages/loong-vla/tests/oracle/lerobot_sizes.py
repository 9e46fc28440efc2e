"""lerobot's Pi policies in other sizes than the two it admits, and in float64. Runs in lerobot's own environment."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

EXACT = {"float32": torch.float64}


class ExactTorch(ModuleType):
    """The module torch, but with float64 where its user asks for float32."""

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        return EXACT.get(name, getattr(torch, name))


def modeling(kind: str) -> Any:
    """lerobot's module of a policy."""
    return importlib.import_module(f"lerobot.policies.{kind}.modeling_{kind}")


def use_sizes(kind: str, sizes: Mapping[str, Any]) -> None:
    """Make a policy's module build models of these sizes (in the form of `sizes.json`)."""
    module = modeling(kind)

    def gemma(variant: str) -> Any:
        size = sizes["language" if variant == "gemma_2b" else "expert"]
        return module.GemmaConfig(
            size["width"], size["depth"], size["mlp"], size["heads"], size["kv_heads"], size["head_dim"]
        )

    def in_vision_size(build: Callable[..., Any]) -> Callable[..., Any]:
        def built(config: Any) -> Any:
            vision = config.vision_config
            for key, value in sizes["vision"].items():
                setattr(
                    vision, {"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}.get(key, key), value
                )
            vision.projection_dim = config.projection_dim = sizes["language"]["width"]
            config.text_config.vocab_size = config._vocab_size = sizes["vocab_size"]
            config.image_token_index = sizes["vocab_size"]
            return build(config=config)

        return built

    def in_vocabulary(build: Callable[..., Any]) -> Callable[..., Any]:
        def built(config: Any) -> Any:
            config.vocab_size = sizes["vocab_size"]
            return build(config=config)

        return built

    module.get_gemma_config = gemma
    module.PaliGemmaForConditionalGenerationWithPiGemma = in_vision_size(
        module.PaliGemmaForConditionalGenerationWithPiGemma
    )
    module.PiGemmaForCausalLM = in_vocabulary(module.PiGemmaForCausalLM)


def use_float64(kind: str) -> None:
    """Make a policy compute in float64 where it says float32; the angles of its rotary embedding stay float32."""
    from lerobot.policies import pi_gemma

    for name in (
        f"lerobot.policies.{kind}.modeling_{kind}",
        "lerobot.policies.common.flow_matching",
        "lerobot.policies.common.vla_utils",
        "transformers.models.gemma.modeling_gemma",
        "transformers.models.siglip.modeling_siglip",
    ):
        importlib.import_module(name).torch = ExactTorch()

    def norm(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)

    def forward(self: Any, x: torch.Tensor, cond: torch.Tensor | None = None) -> Any:
        normed = self._norm(x)
        if cond is None or self.dense is None:
            return normed * (1 + self.weight), None
        scale, shift, gate = self.dense(cond).unsqueeze(1).chunk(3, dim=-1)
        return normed * (1 + scale) + shift, gate

    pi_gemma.PiGemmaRMSNorm._norm = norm
    pi_gemma.PiGemmaRMSNorm.forward = forward
