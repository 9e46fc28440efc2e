"""Adapters on the experts of a mixture are those that the peft library puts on their parameters."""

import json

import pytest
import torch
import torch.distributed as dist
from lora_toys import CONTEXT, adapted, adapter_gradients, ours, train
from toy_models import SMALL, batch_of, reference, save

from loong_core.errors import UserError
from loong_core.nn.lora import LoraSettings, apply_lora, merge_lora
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.adapter import adapter_pieces, load_adapter, read_settings, save_adapter
from loong_llm.adapter_experts import joined
from loong_llm.model import build_stages, open_model

CONFIGS = {
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **SMALL,
        "head_dim": 8,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 10,
        "norm_topk_prob": True,
    },
    "mixtral": {"model_type": "mixtral", **SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
}
TARGETS = {
    "experts and queries": ("experts", "q_proj"),
    "down alone": ("mlp.experts.down_proj",),
    "gate and up of the second layer": ("layers.1.mlp.experts.gate_up_proj",),
    "all linear and experts": ("all-linear", "experts"),
}


@pytest.fixture
def base(tmp_path, request):
    return save(reference(getattr(request, "param", CONFIGS["qwen3_moe"])), tmp_path / "base")


def write(folder, source, stages, weight_map, settings, context=CONTEXT):
    pieces = adapter_pieces(stages, weight_map, context)
    save_adapter(folder, pieces, settings, context, weight_map=source.weight_map, num_layers=2)


@pytest.mark.parametrize("base", CONFIGS.values(), ids=CONFIGS.keys(), indirect=True)
@pytest.mark.parametrize("targets", TARGETS.values(), ids=TARGETS.keys())
def test_peft_opens_the_folder_and_its_logits_and_gradients_are_ours(base, targets, tmp_path):
    from peft import PeftModel

    settings = LoraSettings(rank=3, alpha=5, targets=targets)
    source, stages, weight_map = adapted(base, settings)
    write(tmp_path / "adapter", source, stages, weight_map, settings)
    hf = json.loads((base / "config.json").read_text())
    theirs = PeftModel.from_pretrained(reference(hf), str(tmp_path / "adapter"), is_trainable=True).eval()
    batch = batch_of([13])
    logits, their_logits = stages[0].logits(batch), theirs(batch.tokens[None]).logits[0]
    torch.testing.assert_close(logits, their_logits, rtol=1e-9, atol=1e-9)

    logits.logsumexp(-1).sum().backward()
    their_logits.logsumexp(-1).sum().backward()
    gradients = joined(adapter_gradients(stages[0], weight_map))
    their_gradients = {
        name.replace(".default", ""): parameter.grad
        for name, parameter in theirs.named_parameters()
        if parameter.requires_grad
    }
    assert gradients.keys() == their_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, their_gradients[name], rtol=1e-8, atol=1e-9, msg=name)

    _, fresh = ours(base)
    load_adapter(tmp_path / "adapter", fresh, source.weight_map, 2, CONTEXT)
    assert torch.equal(fresh[0].logits(batch), logits)
    assert set(read_settings(tmp_path / "adapter").targets) >= {
        name for name in ("model.layers.1.mlp.experts.gate_up_proj",) if "experts" in targets
    }
    merge_lora(stages)
    torch.testing.assert_close(stages[0].logits(batch), logits, rtol=1e-10, atol=1e-10)
    assert {name for name, _ in stages[0].named_parameters()} == {
        name for name, _ in build_stages(source, CONTEXT)[0].named_parameters()
    }


def test_a_fresh_adapter_changes_nothing_and_all_linear_leaves_experts_alone(base):
    source, plain = ours(base)
    _, stages = ours(base)
    apply_lora(stages, source.weight_map, 2, CONTEXT, LoraSettings(targets=("experts",)))
    batch = batch_of([9, 4])
    torch.testing.assert_close(stages[0].logits(batch), plain[0].logits(batch), rtol=1e-12, atol=1e-12)
    trained = {name for name, parameter in stages[0].named_parameters() if parameter.requires_grad}
    assert trained == {
        f"layers.{layer}.feed_forward.experts.lora.{product}.{letter}"
        for layer in range(2)
        for product in ("gate_up", "down")
        for letter in "ab"
    }
    _, stages = ours(base)
    apply_lora(stages, source.weight_map, 2, CONTEXT, LoraSettings())
    assert not [name for name, _ in stages[0].named_parameters() if ".experts.lora." in name]


@pytest.mark.parametrize("values", [{"dora": True}, {"dropout": 0.1}])
def test_what_peft_has_not_for_experts_is_refused(base, values):
    source, stages = ours(base)
    with pytest.raises(UserError, match=r"lora\.targets name experts, for which PEFT has none"):
        apply_lora(stages, source.weight_map, 2, CONTEXT, LoraSettings(targets=("experts",), **values))


def run_rank(base, adapter, output, settings):
    """Two expert ranks: this one's loss, its experts' adapter gradients by box; writes the adapter it loaded."""
    context = ParallelContext.build(Layout(expert=dist.get_world_size()), "cpu")
    source = open_model(base)
    stages = build_stages(source, context, dtype=torch.float64)
    _, weight_map = load_adapter(adapter, stages, source.weight_map, 2, context)
    batches = [batch_of([7, 1, 12], seed=number) for number in range(2)]
    loss = stages[0](batches[context.rank])
    loss.sum().backward()
    pieces = []
    for parameter, placement in weight_map.placements(stages[0], context):
        if ".experts.lora." in placement.name:
            pieces += zip(placement.pieces, placement.from_local(parameter.grad), strict=True)
    write(output, source, stages, weight_map, settings, context)
    return loss.sum().item(), pieces


def test_expert_ranks_have_the_gradients_of_one_rank_and_write_its_folder(base, ranks, tmp_path):
    settings = LoraSettings(rank=2, targets=("experts",))
    source, stages, weight_map = adapted(base, settings)
    write(tmp_path / "one", source, stages, weight_map, settings)
    loss = sum(stages[0](batch_of([7, 1, 12], seed=number)).sum() for number in range(2))
    loss.backward()
    expected = adapter_gradients(stages[0], weight_map)
    found = ranks.run(2, run_rank, base, tmp_path / "one", tmp_path / "two", settings)
    assert sum(own for own, _ in found) == pytest.approx(loss.item(), rel=1e-10)
    seen = set()
    for _, pieces in found:
        for piece, gradient in pieces:
            torch.testing.assert_close(gradient, expected[piece.name][piece.slices], rtol=1e-9, atol=1e-11)
            seen.add(piece.name)
    assert seen == expected.keys()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def refused(base):
    context = ParallelContext.build(Layout(expert_tensor=2), "cpu")
    source = open_model(base)
    try:
        apply_lora(build_stages(source, context), source.weight_map, 2, context, LoraSettings(targets=("experts",)))
    except UserError as error:
        return str(error)


def test_matrices_that_the_layout_cuts_are_refused(base, ranks):
    assert "whose matrices layout.expert_tensor 2 cuts" in ranks.run(2, refused, base)[0]


def test_adapters_of_experts_train_alike_on_two_expert_ranks(base, ranks):
    settings = LoraSettings(rank=2, targets=("experts", "o_proj"))
    ((curve, weights),) = ranks.run(1, train, base, Layout(), settings)
    their_curve, their_weights = ranks.run(2, train, base, Layout(expert=2), settings)[0]
    assert curve[2][0] < curve[0][0]
    for (loss, norm), (their_loss, their_norm) in zip(curve, their_curve, strict=True):
        assert their_loss == pytest.approx(loss, rel=1e-5)
        assert their_norm == pytest.approx(norm, rel=1e-4)
    start = {name: value.float() for name, value in reference(CONFIGS["qwen3_moe"]).state_dict().items()}
    assert torch.equal(
        weights["model.layers.0.self_attn.o_proj.weight"], start["model.layers.0.self_attn.o_proj.weight"]
    )
    for name, value in weights.items():
        torch.testing.assert_close(their_weights[name], value, rtol=2e-3, atol=2e-4, msg=name)
