"""A family without a class in transformers: random weights in its folder, and a plain reading of them to equal."""

import json

import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from toy_models import batch_of, named_gradients

from loong_core.parallel.context import ParallelContext
from loong_llm.model import build_stages, open_model

LENGTHS = [7, 1, 12]


def random_folder(path, hf, shapes):
    """A folder of random float64 weights by `config.json` and shapes by name: its path, and the weights as leaves."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3 for name, shape in shapes.items()
    }
    save_file(weights, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(hf))
    return path, {name: tensor.requires_grad_() for name, tensor in weights.items()}


def assert_equal_to_plain(path, weights, plain_logits):
    """Logits, loss of each token and every gradient, in float64, of packed sequences; `plain_logits` reads one."""
    context = ParallelContext.single()
    source = open_model(path)
    (ours,) = build_stages(source, context, dtype=torch.float64)
    batch = batch_of(LENGTHS, source.config.vocab_size)

    logits = torch.cat([plain_logits(weights, sequence) for sequence in batch.tokens.split(LENGTHS)])
    losses = F.cross_entropy(logits, batch.labels, reduction="none")
    losses.sum().backward()
    torch.testing.assert_close(ours.logits(batch), logits, rtol=1e-10, atol=1e-12)
    found = ours(batch)
    found.sum().backward()

    torch.testing.assert_close(found, losses, rtol=1e-10, atol=1e-12)
    expected = {name: tensor.grad for name, tensor in weights.items()}
    torch.testing.assert_close(named_gradients(ours, source.weight_map, context), expected, rtol=1e-10, atol=1e-12)
