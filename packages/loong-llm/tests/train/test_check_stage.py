"""What is wrong with a run because of its stage, its adapters or its frozen weights is said before it starts."""

from pathlib import Path

import pytest
from toy_models import CONFIGS, reference, save

from loong_core.config import load_run
from loong_core.nn import four_bit
from loong_llm.check import check_run
from loong_llm.data_preview import preview_data
from loong_llm.recipes.training_config import TrainingConfig
from loong_llm.tokenizer import load_tokenizer

EXAMPLES = Path(__file__).parents[4] / "examples" / "llm"
CONVERSATIONS = EXAMPLES / "tiny_conversations.jsonl"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = save(
        reference({**CONFIGS["qwen3, head_dim unlike hidden/heads"], "vocab_size": 259}),
        tmp_path_factory.mktemp("base"),
    )
    load_tokenizer("bytes").save_pretrained(folder)
    return folder


@pytest.fixture
def check(base, tmp_path):
    def run(*overrides, example="tiny_sft"):
        own = [f"model.source={base}", f"output={tmp_path / 'run'}", f"data.train={CONVERSATIONS}"]
        own.append(f"data.validation={EXAMPLES / 'tiny_conversations_held_out.jsonl'}")
        return check_run(load_run(TrainingConfig, EXAMPLES / f"{example}.yaml", [*own, *overrides]), 1)

    return run


def said(found):
    return "\n".join(map(str, found.faults))


@pytest.mark.parametrize(
    ("example", "adapters"),
    [("tiny_sft", False), ("tiny_sft_lora", True)],
)
def test_the_examples_have_no_faults_and_tell_their_stage_and_adapters(check, example, adapters):
    found = check(example=example)
    assert said(found) == ""
    assert found.facts["stage"] == "sft"
    assert ("adapters" in found.facts) == adapters


def test_a_look_at_conversations_tells_the_steps_of_epochs_and_what_is_held_out_and_trained_on(base, tmp_path):
    own = [f"model.source={base}", f"output={tmp_path / 'run'}"]
    own += [f"data.{part}={CONVERSATIONS}" for part in ("train", "validation")]
    config = load_run(TrainingConfig, EXAMPLES / "tiny_sft.yaml", own).config
    seen = preview_data(config, 2)
    assert seen is not None
    assert seen.warnings[-1] == "22 of 22 held-out samples are in the training data too, word for word"
    assert seen.steps == 13
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stage=finetune", "stage: is 'finetune'; input should be 'pretrain', 'midtrain' or 'sft'"),
        ("data.text_key=body", "data.text_key: would be ignored: it is for documents, the stage is sft"),
        ("data.attend_across_documents=true", "data.attend_across_documents: would be ignored"),
        ("data.chat_template=chatlm", "data.chat_template: no chat template is called 'chatlm'"),
        ("data.chat_template=null", "data.chat_template: the tokenizer"),
        (f"data.train={EXAMPLES / 'tiny.yaml'}", "data.train: "),
        ("data.train_on=users", "data.train_on: is 'users'"),
        ("data.paking=false", "data.paking: is not a key of a run file (did you mean data.packing?)"),
        ("lora.targets=q_porj", "lora.targets: 'q_porj' matches nothing; did you mean q_proj?"),
        ("lora.rank=0", "lora.rank: is 0; input should be greater than or equal to 1"),
        ("train.freeze=[layers.9]", "train.freeze: 'layers.9' matches nothing"),
        ("train.train_only=[embed_tokenz]", "train.train_only: 'embed_tokenz' matches nothing; did you mean"),
        ("train.freeze=[model, lm_head]", "train.freeze leaves nothing to train"),
    ],
)
def test_each_fault_of_stage_and_trained_part_is_told_with_its_key(check, override, words):
    assert words in said(check(override)).replace("freeze: leaves", "freeze leaves")


def test_keys_of_conversations_are_faults_in_pretraining(check):
    words = said(check("stage=pretrain", f"data.train=[{{path: {EXAMPLES / 'tiny.txt'}, format: alpaca}}]"))
    assert "data.chat_template: would be ignored: it is for conversations, the stage is pretrain" in words
    assert "data.train.format: would be ignored: it is for stages midtrain and sft" in words


def test_adapters_need_weights_and_leave_nothing_to_freeze(check):
    assert "lora: adapts a model whose weights are drawn at random" in said(
        check("model.initialise=random", example="tiny_sft_lora")
    )
    assert "train.freeze: would be ignored: with lora nothing but the adapters" in said(
        check("train.freeze=[embed_tokens]", example="tiny_sft_lora")
    )
    assert "lora.dropout" in said(check("lora.dropout=0.1", "lora.dora=true"))


def test_merging_is_for_the_megatron_engine(check):
    assert "engine fsdp does not merge adapters" in said(check("engine=fsdp", "lora.merge=true"))


def test_router_choices_of_a_dense_model_are_told_to_be_ignored(check):
    found = check("logging.router_choices_every=1")
    assert "logging.router_choices_every: would be ignored" in said(found)
    assert "has no routers" in said(found)


def test_4_bits_are_refused_where_they_cannot_be_had(check, monkeypatch, tmp_path):
    assert "lora.base: is 'int8'; input should be 'nf4'" in said(check("lora.base=int8"))
    shape = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32, "vocab_size": 259}
    dense = save(reference({**CONFIGS["qwen3, head_dim unlike hidden/heads"], **shape}), tmp_path / "dense")
    load_tokenizer("bytes").save_pretrained(dense)
    ours = (f"model.source={dense}", "lora.base=nf4")
    found = check(*ours)
    assert said(found) == ""
    assert "over matrices in 4 bits" in found.facts["adapters"]
    assert "layers.{layer}.attention.qkv.weight has 24 inputs" in said(check("lora.base=nf4"))
    assert "lora.base: keeps matrices in 4 bits, and fp8" in said(check(*ours, "precision=bf16", "fp8={}"))
    mixture = {"model_type": "qwen3_moe", **shape, "num_experts": 4, "num_experts_per_tok": 2}
    experts = save(reference({**CONFIGS["qwen3, head_dim unlike hidden/heads"], **mixture}), tmp_path / "experts")
    load_tokenizer("bytes").save_pretrained(experts)
    assert "is experts, which would stay as they are" in said(check(f"model.source={experts}", "lora.base=nf4"))
    monkeypatch.setattr(four_bit, "find_spec", lambda name: None)
    assert "lora.base: needs bitsandbytes, which is not installed (pip install 'loong-llm[qlora]')" in said(
        check(*ours)
    )
