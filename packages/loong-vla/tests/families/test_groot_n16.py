"""GR00T N1.6 as a whole against a plain form: transformers' SigLIP and Qwen3, the rest from its description."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from groot_plain import plain_n16
from groot_policy_case import CAMERAS, recorded
from groot_toys import ALONE, NAMES, samples
from named_random import random_weight
from torch import Tensor, nn
from torch.nn import functional as F

from loong_vla.families.groot.batch import GrootBatch, GrootCollator
from loong_vla.families.groot.policy import GrootPolicy, prepared
from loong_vla.families.groot.policy_config import GrootConfig, published
from loong_vla.families.groot.reading import read_groot_config
from loong_vla.families.groot.weights import groot_weight_map, handed_on

MARKS = ("<|im_start|>", "<|im_end|>", "<img>", "<IMG_CONTEXT>", "</img>")
KEPT = 2


def eagle() -> dict[str, Any]:
    text = {
        "model_type": "qwen3", "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 270, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "tie_word_embeddings": True,
    }  # fmt: skip
    vision = {
        "model_type": "siglip2_vision_model", "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2,
        "num_attention_heads": 2, "patch_size": 4,
    }  # fmt: skip
    return {"image_token_index": 259 + MARKS.index("<IMG_CONTEXT>"), "text_config": text, "vision_config": vision}


def config() -> GrootConfig:
    own = published("n1.6")
    dit = own["diffusion_model_cfg"] | {
        "num_layers": 4, "num_attention_heads": 2, "attention_head_dim": 8, "output_dim": 10, "dropout": 0.0,
    }  # fmt: skip
    sizes = {
        "backbone_embedding_dim": 24, "select_layer": KEPT, "max_state_dim": 7, "max_action_dim": 5,
        "action_horizon": 4, "hidden_size": 10, "input_embedding_dim": 16, "max_seq_len": 12, "max_num_embodiments": 6,
        "diffusion_model_cfg": dit, "backbone_config": eagle(), "image_target_size": [16, 16],
    }  # fmt: skip
    return GrootConfig(
        version="n1.6", cameras=CAMERAS, state_dim=4, action_dim=3, model=own | sizes, chunk_size=4, n_action_steps=4,
        embodiment="robot 2", ids=NAMES,
    )  # fmt: skip


def tokenizer() -> Any:
    from loong_llm.tokenizer.byte_level import byte_tokenizer

    found = byte_tokenizer()
    found.add_special_tokens({"additional_special_tokens": list(MARKS)})  # type: ignore[dict-item]
    return found


def made() -> tuple[GrootPolicy, GrootBatch]:
    own = config()
    policy = GrootPolicy(own).double().eval()
    with torch.no_grad():
        for parameter, placement in groot_weight_map(own).placements(policy, ALONE):
            drawn = [random_weight(each.name, each.global_shape)[each.slices] for each in placement.pieces]
            parameter.copy_(placement.to_local(drawn))
    given = recorded()
    batch = GrootCollator(own, tokenizer(), seed=0)(samples())
    acted = replace(batch.acted, noise=given["noise"], time=given["time"], keep_state=None)
    return policy, prepared(replace(batch, acted=acted), own)


def tensors(policy: GrootPolicy) -> dict[str, Tensor]:
    """The policy's weights by NVIDIA's names, as parts of its own parameters."""
    found: dict[str, Tensor] = {}
    for parameter, placement in groot_weight_map(policy.config).placements(policy, ALONE):
        for piece, part in zip(placement.pieces, placement.from_local(parameter), strict=True):
            if piece.is_whole:
                found[piece.name] = part
    return found


def called(module: nn.Module, weights: dict[str, Tensor], prefix: str, *arguments: Any, **choices: Any) -> Any:
    own = {name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)}
    return torch.func.functional_call(module, own, arguments, choices)


def exact_norm(norm: Any, x: Tensor) -> Tensor:
    return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)


def plain_features(policy: GrootPolicy, batch: GrootBatch, monkeypatch: Any) -> Tensor:
    """Pictures by SigLIP, joined by four, through two layers; then the first layers of Qwen3, one sample at a time."""
    from transformers import Qwen3Config, Qwen3Model, SiglipVisionConfig, SiglipVisionModel
    from transformers.models.qwen3 import modeling_qwen3

    monkeypatch.setattr(modeling_qwen3.Qwen3RMSNorm, "forward", exact_norm)
    weights, hf = tensors(policy), eagle()
    vision = SiglipVisionConfig(**{k: v for k, v in hf["vision_config"].items() if k != "model_type"}, image_size=16)
    vision.vision_use_head = False
    prefix = "backbone.model.vision_model."
    tower = SiglipVisionModel(vision).double()
    if not any(name.startswith("vision_model.") for name, _ in tower.named_parameters()):
        prefix += "vision_model."
    pictures = batch.vision.pictures
    rows = pictures.patches.double().view(pictures.count, 4, 4, 3, 4, 4)
    pixels = rows.permute(0, 3, 1, 4, 2, 5).reshape(pictures.count, 3, 16, 16)
    patches = called(tower, weights, prefix, pixels).last_hidden_state.view(pictures.count, 4, 4, 16)
    # [pictures, 2, 2, 4 * 16]: of each square its columns, and in each of these its rows
    squares = patches.view(-1, 2, 2, 2, 2, 16).permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)
    joint = "backbone.model.mlp1."
    x = F.layer_norm(squares, (64,), weights[f"{joint}0.weight"], weights[f"{joint}0.bias"])
    x = F.gelu(x @ weights[f"{joint}1.weight"].T + weights[f"{joint}1.bias"])
    shown = x @ weights[f"{joint}3.weight"].T + weights[f"{joint}3.bias"]  # [pictures, 4, width]
    language = Qwen3Model(Qwen3Config(**(hf["text_config"] | {"num_hidden_layers": KEPT}))).double()
    language.norm = nn.Identity()  # type: ignore[assignment]
    table = weights["backbone.model.language_model.lm_head.weight"]
    found, used = [], 0
    for row in batch.rows:
        ids = batch.vision.tokens[row]
        embedded = table[ids]
        places = (ids == hf["image_token_index"]).nonzero().squeeze(1)
        own = shown[used : used + len(places) // 4].flatten(0, 1)
        used += len(places) // 4
        embedded = embedded.index_copy(0, places, own)
        inner = {name: each for name, each in weights.items() if ".layers." in name}
        out = called(language, inner, "backbone.model.language_model.model.", inputs_embeds=embedded[None])
        found.append(out.last_hidden_state[0])
    return torch.stack(found)


def test_value_and_every_gradient_equal_the_plain_form(monkeypatch: Any) -> None:
    policy, batch = made()
    assert batch.there is None
    acted = batch.acted
    images = torch.zeros(batch.rows.shape, dtype=torch.bool)
    for row, ids in enumerate(batch.vision.tokens[batch.rows]):
        images[row] = ids == eagle()["image_token_index"]
    given = {
        "features": plain_features(policy, batch, monkeypatch), "image_mask": images,
        "attention_mask": torch.ones_like(images), "state": acted.state.double()[:, None], "noise": acted.noise,
        "actions": acted.actions.double(), "time": acted.time, "embodiment": acted.embodiment,
    }  # fmt: skip
    results = []
    for velocity in (policy(batch), plain_n16(policy.head, given)):  # type: ignore[arg-type]
        gradients = torch.autograd.grad(velocity.square().sum(), list(policy.parameters()), retain_graph=True)
        results.append((velocity.detach(), gradients))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-6, atol=1e-8)
    for (name, _), first, second in zip(policy.named_parameters(), results[0][1], results[1][1], strict=True):
        atol = 1e-5 * float(second.abs().max()) + 1e-9
        torch.testing.assert_close(first, second, rtol=1e-4, atol=atol, msg=lambda text, n=name: f"{n}: {text}")


def test_names_of_the_published_size_cover_each_bank_once() -> None:
    full = GrootConfig(
        version="n1.6", cameras=CAMERAS, state_dim=4, action_dim=3, model=published("n1.6"), ids={"a": 3}, held=("a",)
    )
    with torch.device("meta"):
        policy = GrootPolicy(full)
    own = sum(each.numel() for each in policy.parameters())
    rest = sum(int(np.prod(each.sizes)) for each in handed_on(full))
    assert own + rest == 2_960_729_840


def test_nvidias_folder_is_read_and_needs_to_be_told_the_robot(tmp_path: Path) -> None:
    told = {key: value for key, value in published("n1.6").items() if key != "backbone_config"}
    (tmp_path / "config.json").write_text(json.dumps(told))
    found = read_groot_config(tmp_path, told)
    assert (found.version, found.head.horizon, found.head.vl_layers) == ("n1.6", 50, 0)
    told_first = str(found.faults("config.json")[0])
    assert told_first.startswith("config.json: input_features names no camera")
