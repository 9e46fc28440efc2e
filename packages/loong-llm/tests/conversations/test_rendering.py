"""Templates that tokenizers bring: what is trained on when they are less simple than the shipped ones."""

import pytest
from samples_of_talk import MULTI_TURN, SYSTEM, TOOL_CALL, TOOLS

from loong_core.errors import UserError
from loong_llm.chat_templates import CompiledTemplate, TemplateRefusal, named_template
from loong_llm.conversations.encoding import ConversationEncoder, RenderSettings
from loong_llm.conversations.messages import BadSample, conversation
from loong_llm.tokenizer import load_tokenizer

CHATML = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
OPENING = "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"

MARKED = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{%- if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{%- else %}{{ m.content + '<|im_end|>' }}"
    "{%- endif %}{{ '\n' }}{%- endfor %}"
)

# Keeps reasoning in answers to the last question only, as reasoning models' templates do.
FORGETFUL = (
    "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{%- endif %}{%- endfor %}{%- for m in messages %}{{ '<' + m.role + '>' }}"
    "{%- if m.role == 'assistant' and loop.index0 > ns.last and m.reasoning_content %}"
    "{{ '<think>' + m.reasoning_content + '</think>' }}{%- endif %}{{ m.content + '<|end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<assistant>' }}{%- endif %}"
)

# Opens every answer with <think>, which the data's answers do not begin with.
THINKING_PROMPT = (
    "{%- for m in messages %}{{ '<' + m.role + '>' + m.content + '<|end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<assistant><think>' }}{%- endif %}"
)


def encoder(template, **settings):
    tokenizer = load_tokenizer("bytes")
    tokenizer.chat_template = template
    return ConversationEncoder(tokenizer, RenderSettings(**settings))


def trained(template, messages, tools=None, **settings):
    texts = encoder(template, **settings).render(conversation(messages, tools))
    return [[text.text[start:end] for start, end in text.spans] for text in texts]


def test_generation_marks_are_what_is_trained_on():
    assert trained(MARKED, MULTI_TURN) == [["Hi there.<|im_end|>", "Four, naïvely.<|im_end|>"]]


def test_generation_marks_leave_the_text_as_transformers_renders_it():
    own = encoder(MARKED)
    theirs = own.tokenizer.apply_chat_template(MULTI_TURN, tokenize=False)
    assert own.render(conversation(MULTI_TURN))[0].text == theirs


def test_marks_and_prefixes_agree_with_transformers_assistant_mask():
    own = encoder(MARKED)
    mask = own.tokenizer.apply_chat_template(MULTI_TURN, return_assistant_tokens_mask=True, return_dict=True)
    (sample,) = own.encode(own.render(conversation(MULTI_TURN)))
    assert sample.trained.astype(int).tolist() == mask["assistant_masks"]
    (by_prefixes,) = encoder(CHATML + OPENING).encode(encoder(CHATML + OPENING).render(conversation(MULTI_TURN)))
    # Without marks the end of turn is no special token here, so the line break behind it counts too.
    assert by_prefixes.trained.sum() == sample.trained.sum() + 2


def test_only_the_last_turn_is_trained_on_when_asked_for():
    assert trained(CHATML + OPENING, SYSTEM, train_on="last_turn") == [["Four, naïvely.<|im_end|>\n"]]
    assert trained(MARKED, SYSTEM, train_on="last_turn") == [["Four, naïvely.<|im_end|>"]]


def test_the_last_turn_holds_every_answer_to_the_last_question():
    assert trained(named_template("chatml").text, TOOL_CALL[:-2], TOOLS, train_on="last_turn") == [
        [
            '<tool_call>\n{"name": "weather", "arguments": {"place": "Bern", "days": 2}}\n</tool_call><|im_end|>\n',
            "Yes.<|im_end|>\n",
        ]
    ]


def test_everything_is_trained_on_when_asked_for():
    (text,) = encoder(CHATML, train_on="everything").render(conversation(MULTI_TURN))
    assert text.spans == [(0, len(text.text))]


def test_messages_of_weight_zero_are_prompt():
    messages = [dict(message) for message in MULTI_TURN]
    messages[1]["weight"] = 0
    assert trained(CHATML + OPENING, messages) == [["Four, naïvely.<|im_end|>\n"]]


def test_a_turn_that_is_later_written_otherwise_is_trained_in_a_text_of_its_own():
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "reasoning_content": "so"},
    ]
    texts = encoder(FORGETFUL).render(conversation(messages))
    assert [text.text for text in texts] == [
        "<user>a<|end|><assistant><think>hm</think>b<|end|>",
        "<user>a<|end|><assistant>b<|end|><user>c<|end|><assistant><think>so</think>d<|end|>",
    ]
    assert trained(FORGETFUL, messages) == [["<think>hm</think>b<|end|>"], ["<think>so</think>d<|end|>"]]


def test_an_answer_that_does_not_begin_as_the_prompt_opens_it_is_trained_from_where_they_part():
    assert trained(THINKING_PROMPT, MULTI_TURN) == [["Hi there.<|end|>", "Four, naïvely.<|end|>"]]


def test_a_template_that_rewrites_the_past_is_refused():
    template = "{{ messages | length }}{%- for m in messages %}{{ m.content }}{%- endfor %}"
    with pytest.raises(BadSample, match="rewrites what came before message"):
        encoder(template).render(conversation(MULTI_TURN))


def test_a_variable_that_the_template_needs_and_is_not_given_is_named():
    template = "{{ date_string }}" + CHATML
    with pytest.raises(BadSample, match=r"needs a variable 'date_string' .* set data\.template_variables\.date_string"):
        encoder(template).render(conversation(MULTI_TURN))
    (text,) = encoder(template, variables={"date_string": "26 Jul 2024"}).render(conversation(MULTI_TURN))
    assert text.text.startswith("26 Jul 2024<|im_start|>user")


def test_a_variable_that_is_only_tested_may_be_missing():
    assert encoder("{%- if enable_thinking %}x{%- endif %}" + CHATML).render(conversation(MULTI_TURN))


def test_arguments_are_given_as_text_to_a_template_that_joins_them_to_text():
    template = (
        "{%- for m in messages %}{{ m.role + ':' + m.content }}{%- for c in m.tool_calls %}"
        "{{ c.function.name + c.function.arguments }}{%- endfor %}{{ '<|end|>' }}{%- endfor %}"
    )
    assert trained(template, TOOL_CALL, TOOLS)[0][0] == 'assistant:weather{"place": "Bern", "days": 2}<|end|>'


def test_a_template_cannot_reach_out_of_its_sandbox():
    template = CompiledTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(TemplateRefusal, match="sandbox"):
        template.render(MULTI_TURN)


def test_a_broken_template_is_told_with_its_line():
    with pytest.raises(UserError, match="line 2 of the chat template is not valid Jinja"):
        encoder("{{ messages }}\n{% for %}")


def test_a_tokenizer_without_a_template_names_the_shipped_ones():
    with pytest.raises(UserError, match=r"has no chat template; set data\.chat_template to one of alpaca, chatml"):
        encoder(None)


def test_a_token_that_begins_in_the_prompt_is_not_trained_on():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz:")}
    backend = Tokenizer(models.BPE(vocab={**letters, ":h": 27}, merges=[(":", "h")]))
    backend.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="z")
    tokenizer.chat_template = (
        "{%- for m in messages %}{{ m.role[0] + ':' + m.content }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{ 'a:' }}{%- endif %}"
    )
    own = ConversationEncoder(tokenizer, RenderSettings())
    (sample,) = own.encode(
        own.render(conversation([{"role": "user", "content": "x"}, {"role": "assistant", "content": "hi"}]))
    )
    assert tokenizer.convert_ids_to_tokens(sample.ids) == ["u", ":", "x", "a", ":h", "i"]
    assert sample.trained.tolist() == [False, False, False, False, False, True]
