"""Every shipped template: rendering as transformers renders it, and the trained stretches are the assistant's."""

import pytest
from samples_of_talk import MULTI_TURN, SYSTEM, TOOL_CALL, TOOLS

from loong_core.errors import UserError
from loong_llm.chat_templates import named_template, template_names
from loong_llm.conversations.encoding import ConversationEncoder, RenderSettings
from loong_llm.conversations.messages import BadSample, conversation
from loong_llm.tokenizer import load_tokenizer

EOS = "<|end|>"
CALL = '{"name": "weather", "arguments": {"place": "Bern", "days": 2}}'

# What the assistant says in each of the shared conversations, with its end of turn, as each format writes it.
SAYS = {
    "llama2": {"multi_turn": [f" Hi there. {EOS}", f" Four, naïvely. {EOS}"], "tool_call": None},
    "llama3": {
        "multi_turn": ["Hi there.<|eot_id|>", "Four, naïvely.<|eot_id|>"],
        "tool_call": [
            '{"name": "weather", "parameters": {"place": "Bern", "days": 2}}<|eot_id|>',
            "Yes.<|eot_id|>",
            "Bye.<|eot_id|>",
        ],
    },
    "chatml": {
        "multi_turn": ["Hi there.<|im_end|>", "Four, naïvely.<|im_end|>"],
        "tool_call": [f"<tool_call>\n{CALL}\n</tool_call><|im_end|>", "Yes.<|im_end|>", "Bye.<|im_end|>"],
    },
    "deepseek": {
        "multi_turn": ["Hi there.<｜end▁of▁sentence｜>", "Four, naïvely.<｜end▁of▁sentence｜>"],
        "tool_call": [
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"place": "Bern", "days": 2}'
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
            "Yes.<｜end▁of▁sentence｜>",
            "Bye.<｜end▁of▁sentence｜>",
        ],
    },
    "minimax": {
        "multi_turn": ["Hi there.[e~[", "Four, naïvely.[e~["],
        "tool_call": [
            '\n<minimax:tool_call>\n<invoke name="weather">\n<parameter name="place">Bern</parameter>\n'
            '<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>[e~[',
            "Yes.[e~[",
            "Bye.[e~[",
        ],
    },
    "mistral": {
        "multi_turn": [f" Hi there.{EOS}", f" Four, naïvely.{EOS}"],
        "tool_call": [f'[TOOL_CALLS] [{CALL[:-1]}, "id": "call00001"}}]{EOS}', f" Yes.{EOS}", f" Bye.{EOS}"],
    },
    "alpaca": {"multi_turn": [f"Hi there.{EOS}", f"Four, naïvely.{EOS}"], "tool_call": None},
    "plain": {
        "multi_turn": [f" Hi there.{EOS}", f" Four, naïvely.{EOS}"],
        "tool_call": [
            f' {{"call": "weather", "arguments": {{"place": "Bern", "days": 2}}}}{EOS}',
            f" Yes.{EOS}",
            f" Bye.{EOS}",
        ],
    },
}
SAYS["qwen"] = SAYS["chatml"]

TALK = {"multi_turn": (MULTI_TURN, None), "system": (SYSTEM, None), "tool_call": (TOOL_CALL, TOOLS)}
EVERY = [(name, talk) for name in template_names() for talk in TALK]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("bytes")


def says(name, talk):
    return SAYS[name]["tool_call" if talk == "tool_call" else "multi_turn"]


def rendered(encoder, talk):
    texts = encoder.render(conversation(*TALK[talk]))
    assert len(texts) == 1
    return texts[0]


def test_every_shipped_template_has_its_expected_answers_here():
    assert set(SAYS) == set(template_names())


@pytest.mark.parametrize(("name", "talk"), EVERY)
def test_the_trained_stretches_are_exactly_what_the_assistant_says(tokenizer, name, talk):
    encoder = ConversationEncoder(tokenizer, RenderSettings(name))
    if says(name, talk) is None:
        with pytest.raises(BadSample, match="no place for tools"):
            encoder.render(conversation(*TALK[talk]))
        return
    text = rendered(encoder, talk)
    assert [text.text[start:end] for start, end in text.spans] == says(name, talk)


@pytest.mark.parametrize(("name", "talk"), EVERY)
def test_rendering_equals_transformers_with_the_same_template(tokenizer, name, talk):
    if says(name, talk) is None:
        return
    messages, tools = TALK[talk]
    encoder = ConversationEncoder(tokenizer, RenderSettings(name))
    theirs = load_tokenizer("bytes")
    theirs.chat_template = named_template(name).text
    checked = conversation(messages, tools)
    assert rendered(encoder, talk).text == theirs.apply_chat_template(messages, tools=tools, tokenize=False)
    ids = theirs.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=False)
    (sample,) = encoder.encode(encoder.render(checked))
    assert sample.ids.tolist() == ids
    prompt = theirs.apply_chat_template(messages[:-1], tools=tools, tokenize=False, add_generation_prompt=True)
    assert encoder.renderer.prompt(messages[:-1], tools) == prompt


@pytest.mark.parametrize(("name", "talk"), EVERY)
def test_the_trained_tokens_decode_to_what_the_assistant_says(tokenizer, name, talk):
    if says(name, talk) is None:
        return
    encoder = ConversationEncoder(tokenizer, RenderSettings(name))
    (sample,) = encoder.encode([rendered(encoder, talk)])
    assert tokenizer.decode(sample.ids[sample.trained]) == "".join(says(name, talk))


@pytest.mark.parametrize("name", template_names())
def test_every_turn_follows_the_prompt_that_generation_would_be_given(tokenizer, name):
    encoder = ConversationEncoder(tokenizer, RenderSettings(name))
    text = rendered(encoder, "system")
    for turn, (start, _) in zip((2, 4), text.spans, strict=True):
        assert text.text[:start] == encoder.renderer.prompt(SYSTEM[:turn])


def test_published_forms_are_written_as_published(tokenizer):
    def write(name, messages):
        return ConversationEncoder(tokenizer, RenderSettings(name)).render(conversation(messages))[0].text

    assert write("llama2", SYSTEM).startswith(
        "<|begin|>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHello [/INST] Hi there. <|end|><|begin|>[INST] Two plus"
    )
    assert write("llama3", SYSTEM).startswith(
        "<|begin|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user"
    )
    assert write("chatml", SYSTEM).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi there."
    )
    assert write("deepseek", SYSTEM).startswith("<|begin|>Be brief.<｜User｜>Hello<｜Assistant｜></think>Hi there.")
    assert write("minimax", SYSTEM).startswith("]~!b[]~b]system\nBe brief.[e~[\n]~b]user\nHello[e~[\n]~b]ai\nHi there.")
    assert write("mistral", SYSTEM).startswith("<|begin|>[INST] Be brief.\n\nHello[/INST] Hi there.<|end|>[INST] Two")
    single = [
        {"role": "user", "content": "Add\n\n2, 2", "instruction": "Add", "input": "2, 2"},
        {"role": "assistant", "content": "4"},
    ]
    assert write("alpaca", single) == (
        "<|begin|>Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nAdd\n\n### Input:\n2, 2\n\n### Response:\n4<|end|>\n\n"
    )


def test_a_misspelt_template_names_the_nearest():
    with pytest.raises(UserError, match=r"no chat template is called 'chatlm'; did you mean chatml\?"):
        named_template("chatlm")


def test_an_end_of_turn_of_many_tokens_is_warned_of(tokenizer):
    assert (
        "end of turn '<|im_end|>' is 10 tokens"
        in ConversationEncoder(tokenizer, RenderSettings("chatml")).warnings()[0]
    )
    assert ConversationEncoder(tokenizer, RenderSettings("plain")).warnings() == []
