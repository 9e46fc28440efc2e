"""LoRA on our fused, shared layers is the LoRA of the peft library: outputs, gradients, folders both ways."""

import json

import pytest
import torch
from lora_toys import CONTEXT, SETTINGS, adapted, adapter_gradients, ours
from toy_models import CONFIGS, batch_of, randomise, reference, save

from loong_core.checkpoint.weight_map import WeightMap
from loong_core.errors import UserError
from loong_core.nn.lora import ADAPTER_PREFIX, LoraSettings, apply_lora, merge_lora
from loong_llm.adapter import adapter_pieces, is_adapter, load_adapter, read_settings, save_adapter
from loong_llm.model import build_stages, open_model

FAMILIES = {
    "llama, one key-value head, every bias": CONFIGS[
        "llama, one key-value head, every bias, head_dim unlike hidden/heads"
    ],
    "qwen2, tied": CONFIGS["qwen2, tied"],
    "qwen3": CONFIGS["qwen3, head_dim unlike hidden/heads"],
}


def write(folder, source, stages, weight_map, settings):
    save_adapter(
        folder,
        adapter_pieces(stages, weight_map, CONTEXT),
        settings,
        CONTEXT,
        weight_map=source.weight_map,
        num_layers=source.config.num_layers,
    )


@pytest.fixture
def base(tmp_path, request):
    return save(reference(getattr(request, "param", FAMILIES["qwen3"])), tmp_path / "base")


@pytest.mark.parametrize("base", FAMILIES.values(), ids=FAMILIES.keys(), indirect=True)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_peft_opens_the_folder_and_its_logits_and_gradients_are_ours(base, settings, tmp_path):
    from peft import PeftModel

    source, stages, weight_map = adapted(base, settings)
    write(tmp_path / "adapter", source, stages, weight_map, settings)
    assert is_adapter(tmp_path / "adapter")
    hf = json.loads((base / "config.json").read_text())
    theirs = PeftModel.from_pretrained(reference(hf), str(tmp_path / "adapter"), is_trainable=True).eval()

    batch = batch_of([13])
    logits = stages[0].logits(batch)
    their_logits = theirs(batch.tokens[None]).logits[0]
    torch.testing.assert_close(logits, their_logits, rtol=1e-9, atol=1e-9)

    logits.logsumexp(-1).sum().backward()
    their_logits.logsumexp(-1).sum().backward()
    gradients = adapter_gradients(stages[0], weight_map)
    their_gradients = {
        name.replace(".default", "").replace("lora_magnitude_vector.weight", "lora_magnitude_vector"): parameter.grad
        for name, parameter in theirs.named_parameters()
        if parameter.requires_grad
    }
    assert gradients.keys() == their_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, their_gradients[name], rtol=1e-8, atol=1e-9, msg=name)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_fresh_adapter_changes_nothing_and_trains_nothing_but_itself(base, settings):
    source, plain = ours(base)
    _, stages = ours(base)
    apply_lora(stages, source.weight_map, source.config.num_layers, CONTEXT, settings)
    batch = batch_of([9, 4])
    torch.testing.assert_close(stages[0].logits(batch), plain[0].logits(batch), rtol=1e-12, atol=1e-12)
    assert all((".lora." in name) == parameter.requires_grad for name, parameter in stages[0].named_parameters())


@pytest.mark.parametrize("base", FAMILIES.values(), ids=FAMILIES.keys(), indirect=True)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_merging_keeps_the_output_and_leaves_no_adapter(base, settings):
    source, stages, _ = adapted(base, settings)
    batch = batch_of([9, 4])
    before = stages[0].logits(batch)
    merge_lora(stages)
    torch.testing.assert_close(stages[0].logits(batch), before, rtol=1e-10, atol=1e-10)
    names = {name for name, _ in stages[0].named_parameters()}
    assert names == {name for name, _ in build_stages(source, CONTEXT)[0].named_parameters()}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_saved_adapter_is_loaded_with_the_same_output(base, settings, tmp_path):
    source, stages, weight_map = adapted(base, settings)
    write(tmp_path / "adapter", source, stages, weight_map, settings)
    _, fresh = ours(base)
    read, _ = load_adapter(tmp_path / "adapter", fresh, source.weight_map, source.config.num_layers, CONTEXT)
    assert (read.rank, read.alpha, read.rslora, read.dora) == (
        settings.rank,
        settings.alpha,
        settings.rslora,
        settings.dora,
    )
    batch = batch_of([9, 4])
    assert torch.equal(fresh[0].logits(batch), stages[0].logits(batch))


def test_an_adapter_that_peft_made_is_loaded_with_the_same_output(base, tmp_path):
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    theirs = get_peft_model(reference(json.loads((base / "config.json").read_text())), config).double()
    randomise(theirs, seed=8)
    theirs.base_model.model.load_state_dict(
        {
            name.replace("_proj.", "_proj.base_layer.") if "q_proj" in name or "down_proj" in name else name: value
            for name, value in reference(json.loads((base / "config.json").read_text())).state_dict().items()
        },
        strict=False,
    )
    theirs.save_pretrained(tmp_path / "theirs")
    source, stages = ours(base)
    load_adapter(tmp_path / "theirs", stages, source.weight_map, source.config.num_layers, CONTEXT)
    batch = batch_of([9])
    their_logits = theirs(batch.tokens[None]).logits[0]
    torch.testing.assert_close(stages[0].logits(batch), their_logits, rtol=1e-9, atol=1e-9)


def test_dropout_acts_in_training_only(base):
    settings = LoraSettings(rank=3, dropout=0.5)
    _, stages, _ = adapted(base, settings)
    batch = batch_of([9])
    stages[0].eval()
    assert torch.equal(stages[0].logits(batch), stages[0].logits(batch))
    stages[0].train()
    assert not torch.equal(stages[0].logits(batch), stages[0].logits(batch))


def test_the_draw_follows_the_seed_and_lies_within_its_bound(base):
    def first(seed):
        source, stages = ours(base)
        apply_lora(stages, source.weight_map, source.config.num_layers, CONTEXT, LoraSettings(seed=seed))
        return stages[0].layers["0"].attention.qkv.lora["q_proj"].a

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))
    assert 0.9 * 24**-0.5 < first(1).abs().max() <= 24**-0.5


BAD_TARGETS = {
    "q_porj": r"lora\.targets: 'q_porj' matches nothing; did you mean q_proj\?",
    "embed_tokens": r"'embed_tokens' matches model\.embed_tokens\.weight, which takes no adapter; only the linear",
    "input_layernorm": "which takes no adapter; only the linear layers of the blocks do: down_proj, gate_proj, k_proj",
    "layers.7.self_attn": r"'layers\.7\.self_attn' matches nothing",
}


@pytest.mark.parametrize("target", BAD_TARGETS)
def test_a_target_that_cannot_be_adapted_is_named(base, target):
    source, stages = ours(base)
    with pytest.raises(UserError, match=BAD_TARGETS[target]):
        apply_lora(stages, source.weight_map, source.config.num_layers, CONTEXT, LoraSettings(targets=(target,)))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"rank": 0}, r"lora\.rank is 0; it must be at least 1"),
        ({"dropout": 1.0}, r"lora\.dropout is 1\.0; it must be"),
        ({"dora": True, "dropout": 0.1}, "with dora set dropout to 0"),
        ({"targets": ()}, r"lora\.targets is empty"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values, expected):
    with pytest.raises(UserError, match=expected):
        LoraSettings(**values)


def test_an_adapter_of_another_model_is_refused(base, tmp_path):
    source, stages, weight_map = adapted(base, SETTINGS["every linear"])
    write(tmp_path / "adapter", source, stages, weight_map, SETTINGS["every linear"])
    other = save(reference({**FAMILIES["qwen3"], "intermediate_size": 44}), tmp_path / "other")
    _, fresh = ours(other)
    with pytest.raises(UserError, match=r"is \[3, 40\], this model needs \[3, 44\]; it was made for another model"):
        load_adapter(tmp_path / "adapter", fresh, open_model(other).weight_map, 2, CONTEXT)


def test_an_adapter_of_another_kind_names_what_is_not_served(tmp_path):
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "rank_pattern": {"q_proj": 2}}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"rank_pattern is \{'q_proj': 2\}, which is not served"):
        read_settings(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "IA3"}))
    with pytest.raises(UserError, match="peft_type is IA3, only LORA is served"):
        read_settings(tmp_path)


def test_a_folder_that_is_there_is_not_overwritten(base, tmp_path):
    source, stages, weight_map = adapted(base, SETTINGS["every linear"])
    (tmp_path / "adapter").mkdir()
    with pytest.raises(UserError, match="is there already; choose another folder or delete it"):
        write(tmp_path / "adapter", source, stages, weight_map, SETTINGS["every linear"])


def test_the_base_models_map_knows_nothing_of_adapters(base):
    source, _, extended = adapted(base, SETTINGS["dora"])
    assert isinstance(extended, WeightMap)
    assert not [name for name in source.weight_map.tensors(2) if name.startswith(ADAPTER_PREFIX)]
    assert len([name for name in extended.tensors(2) if name.startswith(ADAPTER_PREFIX)]) == 2 * 7 * 3
