"""lerobot's own policy and its trainer's step: `PI05Policy` in bfloat16, AdamW, clipping, the loss told every step.

Without compilation it recomputes, as lerobot's recipe for Pi0.5 does (`gradient_checkpointing: true`); with it, it does
not. lerobot's package imports every policy and what all of them need; here its `policies` package is entered without
that, so that a machine with torch and transformers needs no more than lerobot, draccus, mergedeep, typing_inspect,
mypy_extensions, gymnasium, farama_notifications, einops and cloudpickle (10 MB), in a folder on PYTHONPATH.
"""

from __future__ import annotations

import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from tools.bench.vla_stacks.work import CAMERAS, Work

NOTE = "bfloat16 weights and AdamW moments, vision tower and norms in float32, prompts padded to 200 tokens"


def build(work: Work) -> Callable[[int], float]:
    """A training step on the batch of a number, which gives the loss."""
    modeling = _modeling(work)
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.pi05.configuration_pi05 import PI05Config

    config = PI05Config(
        input_features={camera: PolicyFeature(FeatureType.VISUAL, (3, 224, 224)) for camera in CAMERAS}
        | {"observation.state": PolicyFeature(FeatureType.STATE, (8,))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (7,))},
        device=work.device,
        dtype="bfloat16" if work.device == "cuda" else "float32",
        gradient_checkpointing=not work.compiled,
        compile_model=work.compiled,
        compile_mode=work.compile_mode,
    )
    with torch.device(work.device):
        policy = modeling.PI05Policy(config).train()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2.5e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)

    def step(number: int) -> float:
        loss, told = policy.forward(batch(work, number))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return told["loss"]

    return step


def batch(work: Work, number: int) -> dict[str, torch.Tensor]:
    """Random samples on the device, in the form in which lerobot's processors give them."""
    device, longest = work.device, work.config.tokenizer_max_length
    generator = torch.Generator(device).manual_seed(number)
    lengths = torch.from_numpy(work.prompt_lengths(number)).to(device)
    tokens = (work.batch, longest)
    return {
        **{camera: torch.rand(work.batch, 3, 224, 224, generator=generator, device=device) for camera in CAMERAS},
        "observation.language.tokens": torch.randint(
            0, work.sizes.vocab_size, tokens, generator=generator, device=device
        ),
        "observation.language.attention_mask": torch.arange(longest, device=device)[None] < lengths[:, None],
        "observation.state": torch.rand(work.batch, 8, generator=generator, device=device),
        "action": torch.randn(work.batch, 50, 7, generator=generator, device=device),
    }


def _modeling(work: Work) -> Any:
    """Lerobot's module, building models of the work's sizes in place of the two that it knows."""
    import lerobot

    package = types.ModuleType("lerobot.policies")
    package.__path__ = [str(pathlib.Path(lerobot.__file__).parent / "policies")]
    sys.modules["lerobot.policies"] = package
    from lerobot.policies.pi05 import modeling_pi05 as module

    sizes = work.sizes

    def gemma(variant: str) -> Any:
        size = sizes.language if variant == "gemma_2b" else sizes.expert
        return module.GemmaConfig(size.width, size.depth, size.mlp, size.heads, size.kv_heads, size.head_dim)

    build_vlm, build_expert = module.PaliGemmaForConditionalGenerationWithPiGemma, module.PiGemmaForCausalLM

    def vlm(config: Any) -> Any:
        vision = config.vision_config
        vision.hidden_size, vision.intermediate_size = sizes.vision.hidden_size, sizes.vision.intermediate_size
        vision.num_hidden_layers, vision.num_attention_heads = sizes.vision.num_layers, sizes.vision.num_heads
        vision.projection_dim = config.projection_dim = sizes.language.width
        config.text_config.vocab_size = config._vocab_size = config.image_token_index = sizes.vocab_size
        return build_vlm(config=config)

    def expert(config: Any) -> Any:
        config.vocab_size = sizes.vocab_size
        return build_expert(config=config)

    module.get_gemma_config = gemma
    module.PaliGemmaForConditionalGenerationWithPiGemma, module.PiGemmaForCausalLM = vlm, expert
    return module
