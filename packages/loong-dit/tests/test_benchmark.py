"""The benchmark of a Wan step runs to its end on a CPU, with its profile, and a compiled block is one graph."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dit_toys.wan import batch_of, wan

ROOT = Path(__file__).parents[3]


def bench(*arguments):
    command = [sys.executable, "-m", "tools.bench.dit", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_row_has_its_profile():
    pytest.importorskip("diffusers")
    told = bench(
        "--model", "tiny", "--device", "cpu", "--steps", "1", "--samples", "2", "--stack", "diffusers", "loong-eager"
    )  # fmt: skip
    assert told.count("products") == told.count("attention  ") == 2
    assert "tiny               loong / diffusers" not in told  # the compiled form was not asked for
    counted = bench("--count", "--model", "wan2.2-ti2v-5b")
    parts = [float(line.split()[-1]) for line in counted.splitlines() if "TFLOP" in line]
    assert sum(parts[:-1]) == pytest.approx(parts[-1], rel=0.01)  # the embeddings are the rest


def test_a_block_is_compiled_whole_and_not_again_for_other_sizes():
    torch._dynamo.reset()
    graphs = []

    def backend(graph, examples):
        graphs.append(graph)
        return graph.forward

    ours, compiled = wan(dtype=torch.float32), wan(dtype=torch.float32)
    for layer in compiled.layers:
        layer.compile(backend=backend, fullgraph=True)
    for number, (size, samples) in enumerate((((1, 4, 4), 1), ((2, 4, 6), 2), ((1, 6, 4), 3), ((3, 4, 4), 2))):
        generator = torch.Generator().manual_seed(number)
        latents = [torch.randn(4, *size, generator=generator) for _ in range(samples)]
        text = [torch.randn(8, 16, generator=generator) for _ in latents]
        batch = batch_of(latents, torch.tensor([300.0, 700.0, 50.0])[:samples], text)
        expected, found = ours(batch), compiled(batch)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert len(graphs) <= 4
