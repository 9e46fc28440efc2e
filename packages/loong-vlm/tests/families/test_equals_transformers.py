"""Logits, loss and every gradient of each family equal transformers', in float64, every parameter at random.

LLaVA-OneVision-1.5, which transformers has no class of, equals a plain reading (`plain_llava_onevision`).
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from vision_toys import (
    INTERNVL,
    INTERNVL_6B,
    INTERNVL_MOE,
    LLAVA_ONEVISION,
    QWEN2_5_VL,
    QWEN3_VL,
    QWEN3_VL_MOE,
    QWEN3_VL_TIED,
    Shown,
    batch_of,
    named_gradients,
    reference,
    reference_inputs,
    save,
)

from loong_core.parallel.context import ParallelContext
from loong_llm.model import build_stages
from loong_vlm.source import VisionModelSource, open_vision_model

ONE = ParallelContext.single()
EXACT = {"rtol": 1e-9, "atol": 1e-11}

CONFIGS = {
    "qwen2.5-vl": QWEN2_5_VL,
    "qwen3-vl": QWEN3_VL,
    "qwen3-vl, tied": QWEN3_VL_TIED,
    "qwen3-vl, mixture of experts": QWEN3_VL_MOE,
    "internvl, qwen3": INTERNVL,
    "internvl, 6b tower, llama": INTERNVL_6B,
    "internvl, mixture of experts": INTERNVL_MOE,
    "llava-onevision-1.5": LLAVA_ONEVISION,
}

SAMPLES = {
    "one image": [[4, Shown((1, 4, 6)), 5]],
    "several images of several sizes, in packed samples": [
        [3, Shown((1, 8, 10)), 1, Shown((1, 2, 2)), 4],
        [6],
        [Shown((1, 6, 4)), 2],
    ],
    "a video among images": [[2, Shown((3, 4, 6), "video", 2.0), 3, Shown((1, 4, 4)), 2]],
    "text only": [[9], [4]],
}


@pytest.fixture(scope="module", params=CONFIGS, ids=CONFIGS)
def pair(request, tmp_path_factory) -> tuple[nn.Module, VisionModelSource]:
    theirs = reference(CONFIGS[request.param])
    return theirs, open_vision_model(save(theirs, tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES)
def test_logits_loss_and_every_gradient_equal(pair, samples):
    theirs, source = pair
    theirs.zero_grad()
    (ours,) = build_stages(source, ONE, dtype=torch.float64)
    batch = batch_of([_as_tiles(sample, source) for sample in samples], source.parts)

    logits = torch.cat([_logits(theirs, batch, number, source) for number in range(len(samples))])
    losses = F.cross_entropy(logits, batch.labels, reduction="none")
    losses.sum().backward()
    torch.testing.assert_close(ours.logits(batch), logits, **EXACT)
    found = ours(batch)
    found.sum().backward()

    torch.testing.assert_close(found, losses, **EXACT)
    gradients = named_gradients(ours, source.weight_map, ONE)
    expected = _gradients_of(theirs, source)
    assert gradients.keys() == expected.keys()
    torch.testing.assert_close(gradients, expected, **EXACT)


def _as_tiles(sample, source: VisionModelSource):
    """The sample, with images that the tower takes: one that takes tiles only gets as many as there are frames."""
    if source.parts.tower_kind.name != "intern_vit":
        return sample
    return [part if isinstance(part, int) else Shown((part.grid[0], 4, 4)) for part in sample]


def _logits(theirs: nn.Module, batch, sequence: int, source: VisionModelSource) -> Tensor:
    return theirs(**reference_inputs(batch, sequence, source.parts)).logits[0]


def _gradients_of(theirs: nn.Module, source: VisionModelSource) -> dict[str, Tensor]:
    """Gradients by the names of the folder that it was saved in."""
    found = {}
    for name, parameter in theirs.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        stored = stored_name(name, source)
        if source.family.name == "internvl" and ".experts." in stored:
            found |= _of_each_expert(stored, gradient)
        else:
            found[stored] = gradient
    return found


def _of_each_expert(stored: str, gradient: Tensor) -> dict[str, Tensor]:
    """What transformers stacks inside and InternVL's files hold expert by expert."""
    found, prefix = {}, stored.rsplit(".", 1)[0]
    for expert, own in enumerate(gradient):
        if stored.endswith("down_proj"):
            found[f"{prefix}.{expert}.down_proj.weight"] = own
        else:
            gate, up = own.chunk(2)
            found |= {f"{prefix}.{expert}.gate_proj.weight": gate, f"{prefix}.{expert}.up_proj.weight": up}
    return found


def stored_name(name: str, source: VisionModelSource) -> str:
    if source.family.name == "qwen2_5_vl":
        return name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")
    if source.family.name == "internvl":
        name = name.replace("model.language_model.", "language_model.model.").replace(
            "lm_head", "language_model.lm_head"
        )
        return name.removeprefix("model.")
    if source.family.name == "llava_onevision1_5":
        return name.removeprefix("text.")
    return name
