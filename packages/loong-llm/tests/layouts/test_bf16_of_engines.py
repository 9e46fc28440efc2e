"""In bf16 the fsdp engine computes what the megatron engine does: neither rounds angles."""

from pathlib import Path

import pytest
from layout_cases import Case, batches
from layout_ranks import engine_of, save_model

from loong_core.engine.settings import EngineSettings
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.recipes.next_token import next_token_loss


def loss_and_angles(case: Case, folder: Path) -> tuple[float, set[str]]:
    """On a rank: the loss in bf16, and the dtypes of the angles that blocks were given."""
    context = ParallelContext.build(case.layout, "cpu")
    engine = engine_of(case, folder, context, EngineSettings(precision="bf16"))
    seen: set[str] = set()
    for block in next(module for module in engine.stages[0].modules() if hasattr(module, "layers")).layers.values():
        block.register_forward_pre_hook(lambda module, given: seen.update(str(table.dtype) for table in given[3]))
    loss = engine.accumulate(batches(case.data), next_token_loss).loss
    return loss, seen


@pytest.mark.parametrize("model", ["dense", "experts"])
def test_fsdp_in_bf16_is_megatron_in_bf16(model, ranks, tmp_path):
    folder = save_model(model, tmp_path)
    (expected, angles), (loss, same) = (
        ranks.run(1, loss_and_angles, Case(1, Layout(), model, engine=engine), folder)[0]
        for engine in ("megatron", "fsdp")
    )
    assert angles == same == {"torch.float32"}
    assert loss == pytest.approx(expected, rel=1e-6)
