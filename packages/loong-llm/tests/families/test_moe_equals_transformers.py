"""Mixtures of experts equal transformers' in float64: logits, loss, every gradient, the auxiliary loss, and folders."""

import sys

import pytest
import torch
from torch.nn import functional as F
from toy_models import SMALL, batch_of, named_gradients, reference, save

from loong_core.data.batch import IGNORED_LABEL
from loong_core.nn.moe.balance import take_load
from loong_core.parallel.context import ParallelContext
from loong_llm.model import build_stages, open_model

ONE = ParallelContext.single()
EXACT = {"rtol": 1e-10, "atol": 1e-12}

QWEN3_MOE = {
    "model_type": "qwen3_moe",
    **SMALL,
    "num_hidden_layers": 3,
    "head_dim": 8,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 10,
    "norm_topk_prob": True,
}
MIXTRAL = {"model_type": "mixtral", **SMALL, "num_local_experts": 5, "num_experts_per_tok": 2}
CONFIGS = {
    "qwen3_moe": QWEN3_MOE,
    "qwen3_moe, a dense layer, weights not normalised, tied, biased": {
        **QWEN3_MOE,
        "mlp_only_layers": [1],
        "norm_topk_prob": False,
        "tie_word_embeddings": True,
        "attention_bias": True,
    },
    "qwen3_moe, every other layer": {**QWEN3_MOE, "decoder_sparse_step": 2},
    "mixtral": MIXTRAL,
}


def stored_gradients(model):
    """Their gradients by the names of a published folder: an expert's weights each by itself."""
    found = {}
    for name, parameter in model.named_parameters():
        if ".experts." not in name:
            found[name.replace(".mlp.gate.", ".block_sparse_moe.gate.") if is_mixtral(model) else name] = parameter.grad
            continue
        prefix, _, kind = name.rpartition(".")
        prefix = prefix.replace(".mlp.", ".block_sparse_moe.") if is_mixtral(model) else prefix
        for expert, gradient in enumerate(parameter.grad):
            parts = gradient.chunk(2) if kind == "gate_up_proj" else [gradient]
            for letter, part in zip(letters(model, kind), parts):
                found[f"{prefix}.{expert}.{letter}.weight"] = part
    return found


def is_mixtral(model):
    return model.config.model_type == "mixtral"


def letters(model, kind):
    if kind == "gate_up_proj":
        return ["w1", "w3"] if is_mixtral(model) else ["gate_proj", "up_proj"]
    return ["w2"] if is_mixtral(model) else ["down_proj"]


def ours_of(theirs, folder, **overrides):
    source = open_model(save(theirs, folder), overrides)
    (model,) = build_stages(source, ONE, dtype=torch.float64)
    return source, model


@pytest.mark.parametrize("hf", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("lengths", [[9, 9], [7, 1, 12]], ids=["one length", "packed"])
def test_logits_loss_and_every_gradient_equal(hf, lengths, tmp_path):
    theirs = reference(hf)
    source, ours = ours_of(theirs, tmp_path)
    batch = batch_of(lengths)
    logits = torch.cat([theirs(sequence[None]).logits[0] for sequence in batch.tokens.split(lengths)])
    losses = F.cross_entropy(logits, batch.labels, reduction="none")
    losses.sum().backward()
    torch.testing.assert_close(ours.logits(batch), logits, **EXACT)
    found = ours(batch)
    found.sum().backward()
    torch.testing.assert_close(found, losses, **EXACT)
    torch.testing.assert_close(named_gradients(ours, source.weight_map, ONE), stored_gradients(theirs), **EXACT)


@pytest.mark.parametrize("hf", [QWEN3_MOE, MIXTRAL], ids=["qwen3_moe", "mixtral"])
def test_the_auxiliary_loss_and_its_gradients_equal(hf, tmp_path, monkeypatch):
    theirs = reference(hf | {"output_router_logits": True, "router_aux_loss_coef": 0.5})
    source, ours = ours_of(theirs, tmp_path)
    batch = batch_of([9, 9])
    trained = (batch.labels != IGNORED_LABEL).sum()
    output = theirs(batch.tokens.view(2, 9))
    balance = sys.modules[type(theirs).__module__].load_balancing_loss_func
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # it is exact but for the float32 steps inside
    aux_loss = balance(output.router_logits, theirs.num_experts, theirs.num_experts_per_tok)
    monkeypatch.undo()
    losses = F.cross_entropy(output.logits.flatten(0, 1), batch.labels, reduction="none")
    (losses.sum() + 0.5 * aux_loss * trained).backward()
    found = ours(batch)
    found.sum().backward()
    torch.testing.assert_close(found, losses, **EXACT)
    torch.testing.assert_close(named_gradients(ours, source.weight_map, ONE), stored_gradients(theirs), **EXACT)
    assert take_load([ours], ONE)["router_aux_loss"] == pytest.approx(aux_loss.item(), rel=1e-10)


def test_without_router_logits_the_auxiliary_loss_is_not_trained_on(tmp_path):
    theirs = reference(QWEN3_MOE | {"output_router_logits": False, "router_aux_loss_coef": 0.5})
    source, _ = ours_of(theirs, tmp_path)
    assert source.config.mixtures[0].router.aux_coefficient == 0.0


def test_a_bfloat16_model_is_as_near_to_exact_logits_as_transformers_is(tmp_path):
    exact = reference(QWEN3_MOE, seed=2)
    batch = batch_of([20])
    wanted = exact(batch.tokens[None]).logits[0]
    source = open_model(save(exact, tmp_path))
    (ours,) = build_stages(source, ONE, dtype=torch.bfloat16)
    theirs = type(exact).from_pretrained(tmp_path, dtype=torch.bfloat16, experts_implementation="eager")
    our_error = (ours.logits(batch) - wanted).norm()
    their_error = (theirs(batch.tokens[None]).logits[0] - wanted).norm()
    assert our_error < 1.5 * their_error
