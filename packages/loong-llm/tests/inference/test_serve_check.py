"""A folder serves if transformers computes from it what we do; adapters serve once they are merged."""

import json

import pytest
import torch
from text_toys import byte_model
from typer.testing import CliRunner

from loong_core.errors import UserError
from loong_core.nn.lora import LoraSettings, apply_lora
from loong_core.parallel.context import ParallelContext
from loong_llm.adapter import adapter_pieces, save_adapter
from loong_llm.cli.main import app
from loong_llm.inference import open_for_inference
from loong_llm.model import build_stages, open_model
from loong_llm.serve_check import serve_check

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return byte_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapter(folder, tmp_path_factory):
    """An adapter at random, which names the folder as its base."""
    source, context = open_model(folder), ParallelContext.single()
    stages = build_stages(source, context)
    settings = LoraSettings(rank=2, alpha=8)
    weight_map = apply_lora(stages, source.weight_map, 2, context, settings)
    with torch.no_grad():
        for number, (name, parameter) in enumerate(stages[0].named_parameters()):
            if ".lora." in name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) * 0.3)
    held = adapter_pieces(stages, weight_map, context)
    output = tmp_path_factory.mktemp("adapter") / "adapter"
    save_adapter(output, held, settings, context, weight_map=source.weight_map, num_layers=2, base_model=str(folder))
    return output


def test_a_folder_that_both_read_alike_serves(folder):
    found = serve_check(folder, CPU)
    assert found.difference <= 1e-4 * max(found.largest, 1)
    assert (found.tokens, found.chat) == (64, False)


def test_a_config_that_says_otherwise_to_one_of_them_is_told(folder, monkeypatch):
    from loong_llm import serve_check as module

    class Shifted(module.ReferenceDecoder):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            with torch.no_grad():
                self.model.model.norm.weight.mul_(1.01)

    monkeypatch.setattr(module, "ReferenceDecoder", Shifted)
    with pytest.raises(UserError, match="logits differ from transformers' by up to"):
        serve_check(folder, CPU)


def test_a_merged_adapter_serves_and_is_what_the_adapter_folder_computes(folder, adapter, tmp_path):
    done = CliRunner().invoke(app, ["convert", str(adapter), str(tmp_path / "merged")])
    assert done.exit_code == 0, done.output
    said = CliRunner().invoke(app, ["serve-check", str(tmp_path / "merged")])
    assert said.exit_code == 0, said.output
    assert "serves: logits of 64 tokens equal transformers'" in said.output
    prompt = ["-p", "the quick", "--max-new-tokens", "8"]
    texts = [
        CliRunner().invoke(app, ["generate", *given, *prompt]).output
        for given in (
            [str(tmp_path / "merged")],
            [str(adapter)],
            [str(folder), "--adapter", str(adapter)],
            [str(folder)],
        )
    ]
    assert texts[0] == texts[1] == texts[2] != texts[3]


def test_a_base_model_that_is_not_there_is_named(adapter, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    config = json.loads((adapter / "adapter_config.json").read_text())
    (broken / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "gone/model"}))
    with pytest.raises(UserError, match="names the base model 'gone/model', and no such folder is here"):
        open_for_inference(broken, CPU)


def test_chat_answers_what_a_user_says_and_needs_a_template(folder, tmp_path):
    from transformers import AutoTokenizer

    told = CliRunner().invoke(app, ["generate", str(folder), "--chat", "-p", "Hi", "--max-new-tokens", "4"])
    assert "has no chat template" in str(told.exception)
    talking = byte_model(tmp_path / "talking")
    tokenizer = AutoTokenizer.from_pretrained(talking)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    tokenizer.save_pretrained(talking)
    given = ["generate", str(talking), "--max-new-tokens", "4"]
    chat = CliRunner().invoke(app, [*given, "--chat", "--system", "Be brief.", "-p", "Hi"])
    assert chat.exit_code == 0, chat.output
    assert serve_check(talking, CPU).chat
