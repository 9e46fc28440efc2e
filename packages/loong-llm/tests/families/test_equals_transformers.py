"""Logits, loss and every gradient of each family equal transformers', in float64, every parameter at random."""

import pytest
import torch
from torch.nn import functional as F
from toy_models import CONFIGS, LLAMA3_SCALING, SMALL, batch_of, named_gradients, reference, save

from loong_core.parallel.context import ParallelContext
from loong_llm.model import build_stages, open_model

ONE = ParallelContext.single()
EXACT = {"rtol": 1e-10, "atol": 1e-12}


@pytest.mark.parametrize("hf", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("lengths", [[9, 9], [7, 1, 12]], ids=["one length", "packed"])
def test_logits_loss_and_every_gradient_equal(hf, lengths, tmp_path):
    theirs = reference(hf)
    source = open_model(save(theirs, tmp_path))
    (ours,) = build_stages(source, ONE, dtype=torch.float64)
    batch = batch_of(lengths)

    sequences = batch.tokens.split(lengths)
    logits = torch.cat([theirs(sequence[None]).logits[0] for sequence in sequences])
    losses = F.cross_entropy(logits, batch.labels, reduction="none")
    losses.sum().backward()
    torch.testing.assert_close(ours.logits(batch), logits, **EXACT)
    found = ours(batch)
    found.sum().backward()

    torch.testing.assert_close(found, losses, **EXACT)
    gradients = named_gradients(ours, source.weight_map, ONE)
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert gradients.keys() == expected.keys()
    torch.testing.assert_close(gradients, expected, **EXACT)


def test_scaled_rotary_frequencies_are_those_of_transformers_at_far_positions():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from loong_core.nn.rotary import Rotary
    from loong_llm.families.llama import LLAMA

    scaling = LLAMA3_SCALING | {"original_max_position_embeddings": 8192}
    hf = {"model_type": "llama", **SMALL, "head_dim": 128, "rope_theta": 5e5, "rope_scaling": scaling}
    positions = torch.tensor([0, 1, 8191, 8192, 131071])
    cos, sin = Rotary(LLAMA.decoder_config(hf).attention.rotary).tables(positions, torch.float32)
    theirs = LlamaRotaryEmbedding(LlamaConfig(**hf))(torch.zeros(1), positions[None])
    assert torch.equal(cos, theirs[0][0, :, :64])
    assert torch.equal(sin, theirs[1][0, :, :64])


def test_bfloat16_logits_are_as_near_to_exact_ones_as_transformers_are(tmp_path):
    hf = CONFIGS["qwen3, head_dim unlike hidden/heads"]
    exact = reference(hf)
    batch = batch_of([20])
    wanted = exact(batch.tokens[None]).logits[0]
    source = open_model(save(exact, tmp_path))
    (ours,) = build_stages(source, ONE, dtype=torch.bfloat16)
    theirs = type(exact).from_pretrained(tmp_path, dtype=torch.bfloat16)
    our_error = (ours.logits(batch) - wanted).norm()
    their_error = (theirs(batch.tokens[None]).logits[0] - wanted).norm()
    assert our_error < 1.2 * their_error
