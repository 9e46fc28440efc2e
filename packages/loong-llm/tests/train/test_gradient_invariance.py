"""The gradient of the same conversations is the same, however they share sequences, microbatches and ranks."""

import json

import pytest
import torch
import torch.distributed as dist
from toy_models import CONFIGS, reference, save

from loong_core.device.cpu import CpuDevice
from loong_core.engine.megatron.engine import MegatronEngine
from loong_core.engine.settings import EngineSettings
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.conversations.corpus import open_conversations
from loong_llm.model import build_stages, open_model
from loong_llm.recipes.next_token import next_token_loss
from loong_llm.recipes.stage_data import conversation_encoder, conversation_settings
from loong_llm.recipes.training_config import DataSection, ModelSection, SourceSection, TrainingConfig
from loong_llm.tokenizer import load_tokenizer

QUESTIONS = ("one", "and two", "three is more", "four", "is five odd", "six", "what of seven", "eight?")
ANSWERS = ("short", "a little longer", "x", "this answer is the longest of them all", "no", "yes it is", "seven", "8")
VARIANTS = {
    "packed": {"packing": True},
    "packed, microbatches of 4": {"packing": True, "micro_batch_size": 4},
    "not packed, microbatches of 4": {"packing": False, "micro_batch_size": 4},
    "packed, 2 ranks": {"packing": True, "ranks": 2},
    "not packed, 2 ranks, microbatches of 2": {"packing": False, "micro_batch_size": 2, "ranks": 2},
}


def run_config(folder, packing):
    return TrainingConfig(
        output=str(folder / "run"),
        stage="sft",
        model=ModelSection(source=str(folder / "base")),
        tokenizer="bytes",
        data=DataSection(
            train=[SourceSection(path=str(folder / "talk.jsonl"))],
            chat_template="plain",
            sequence_length=88,
            packing=packing,
        ),
    )


def gradient(folder, packing, micro_batch_size=1):
    """Loss, trained tokens, and the gradient of one step over all conversations, by name."""
    config = run_config(folder, packing)
    context = ParallelContext.build(Layout(), "cpu")
    source = open_model(config.model.source)
    encoder = conversation_encoder(config, load_tokenizer(config.tokenizer))
    corpus = open_conversations(conversation_settings(config, folder / "run" / "cache"), encoder)
    stream = corpus.stream(
        global_batch_size=corpus.sequences()[0].per_epoch,
        micro_batch_size=micro_batch_size,
        data_rank=context.data.rank,
        data_size=context.data.size,
    )
    stages = build_stages(source, context)
    engine = MegatronEngine(stages, source.weight_map, context, CpuDevice(), EngineSettings(precision="fp32"))
    loss = engine.accumulate(stream.next_step(), next_token_loss)
    mine = [(state.piece, state.tensor.clone()) for state in engine.gradient_pieces()]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    whole = {}
    for piece, values in (each for rank in everyone for each in rank):
        whole.setdefault(piece.name, torch.full(piece.global_shape, torch.nan))[piece.slices] = values
    return loss, whole, stream.samples_per_epoch


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("invariance")
    save(reference({**CONFIGS["qwen3, head_dim unlike hidden/heads"], "vocab_size": 259}), found / "base")
    turns = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in zip(QUESTIONS, ANSWERS, strict=True)
    ]
    (found / "talk.jsonl").write_text("".join(json.dumps({"messages": own}) + "\n" for own in turns))
    return found


@pytest.fixture(scope="module")
def one_by_one(folder, ranks):
    """Each conversation by itself, one after the other."""
    ((loss, gradients, sequences),) = ranks.run(1, gradient, folder, False)
    assert sequences == len(QUESTIONS)
    return loss, gradients


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_gradient_invariance(folder, ranks, one_by_one, variant):
    variant = dict(variant)
    loss, gradients, sequences = ranks.run(variant.pop("ranks", 1), gradient, folder, *variant.values())[0]
    assert (sequences == 4) == variant["packing"]
    expected_loss, expected = one_by_one
    assert loss.tokens == expected_loss.tokens
    assert loss.loss == pytest.approx(expected_loss.loss, rel=1e-6)
    assert gradients.keys() == expected.keys()
    largest = max(float(values.abs().max()) for values in expected.values())
    for name, values in expected.items():
        assert float((gradients[name] - values).abs().max()) <= 1e-6 * largest, name
