from dataclasses import replace

import pytest
import torch
from text_toys import byte_model

from loong_core.errors import UserError
from loong_llm.generate import TextStream, generate
from loong_llm.inference import open_for_inference
from loong_llm.sampling import Sampling
from loong_llm.tokenizer.byte_level import byte_tokenizer

PROMPTS = ["def ", "", "a much longer prompt than the others: é", "x"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return byte_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder):
    return open_for_inference(folder, torch.device("cpu"))


def test_greedy_writing_equals_transformers(folder, model):
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    ours = generate(model, PROMPTS, max_new_tokens=20)
    for prompt, written in zip(PROMPTS, ours):
        ids = torch.tensor([model.tokenizer(prompt).input_ids])
        wanted = theirs.generate(ids, do_sample=False, max_new_tokens=20)[0, ids.shape[1] :].tolist()
        if wanted[-1] == 257:
            assert written.ended == "end"
            wanted.pop()
        assert written.tokens == wanted


def test_what_is_written_does_not_depend_on_the_other_prompts(model):
    sampling = Sampling(temperature=1.0, seed=5)
    together = generate(model, PROMPTS, sampling, max_new_tokens=12)
    assert generate(model, PROMPTS[:1], sampling, max_new_tokens=12)[0] == together[0]


def test_the_seed_decides_what_is_drawn(model):
    drawn = [generate(model, ["a"], Sampling(temperature=1.5, seed=seed), max_new_tokens=8)[0] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_text_is_told_as_it_comes_and_adds_up(model):
    told = ["", ""]
    written = generate(
        model,
        ["ab", "cd"],
        Sampling(temperature=1.0),
        max_new_tokens=30,
        on_text=lambda n, text: told.__setitem__(n, told[n] + text),
    )
    assert told == [one.text for one in written]


def test_writing_stops_at_an_end_of_text(model):
    several = generate(model, ["a"] * 40, Sampling(temperature=2.0), max_new_tokens=60)
    ended = [one for one in several if one.ended == "end"]
    assert ended
    assert all(257 not in one.tokens and len(one.tokens) < 60 for one in ended)


def test_writing_stops_where_the_model_can_take_no_more(model):
    (written,) = generate(model, ["x" * 120], max_new_tokens=50)
    assert written.ended == "length"
    assert len(written.tokens) == 7  # 128 positions, of which the prompt and its beginning take 121


def test_a_prompt_longer_than_the_model_can_take_is_told_with_numbers(model):
    with pytest.raises(UserError, match="prompt 1 has 141 tokens, the model takes 128"):
        generate(model, ["a", "x" * 140])


def test_a_prompt_that_is_no_text_is_told(model):
    with pytest.raises(UserError, match="prompt 0 is not UTF-8 at character 1"):
        generate(model, ["a\udc80"])


def test_room_is_made_for_what_is_written_not_for_what_may_be(model):
    unlimited = replace(model, max_length=None)
    pieces = []

    def stop(number, text):
        pieces.append(text)
        if len(pieces) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(unlimited, ["ab"], Sampling(temperature=1.0), max_new_tokens=10**15, on_text=stop)


def test_no_prompt_is_refused(model):
    with pytest.raises(UserError, match="no prompt"):
        generate(model, [])


def test_a_stream_never_tells_half_a_character():
    stream = TextStream(byte_tokenizer())
    text = "aé漢\U0001f600b"
    parts = [stream.add([byte]) for byte in text.encode()]
    assert [part for part in parts if part] == list(text)
    assert stream.text == text


def test_a_stream_does_not_wait_for_ever_for_bytes_that_are_no_character():
    stream = TextStream(byte_tokenizer())
    assert "".join(stream.add([0xFF]) for _ in range(8)) == "\ufffd" * 8


def scores_of(probabilities):
    return torch.tensor([probabilities]).log()


def draws(sampling, probabilities, count=4000):
    generators = sampling.generators(1)
    return [sampling.choose(scores_of(probabilities), generators)[0] for _ in range(count)]


def test_tokens_are_drawn_with_their_probabilities():
    found = torch.bincount(torch.tensor(draws(Sampling(temperature=1.0), [0.1, 0.6, 0.3])), minlength=3) / 4000
    assert (found - torch.tensor([0.1, 0.6, 0.3])).abs().max() < 0.03


def test_a_low_temperature_sharpens():
    found = torch.tensor(draws(Sampling(temperature=0.5), [0.25, 0.75], 2000)).float().mean()
    assert abs(found - 0.9) < 0.03  # 0.75**2 / (0.75**2 + 0.25**2)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(temperature=1.0, top_k=1), {1}),
        (Sampling(temperature=1.0, top_k=2), {1, 3}),
        (Sampling(temperature=1.0, top_p=0.35), {1}),
        (Sampling(temperature=1.0, top_p=0.65), {1, 3}),
        (Sampling(temperature=1.0, top_p=0.75), {1, 2, 3}),
        (Sampling(temperature=1.0, top_k=2, top_p=0.99), {1, 3}),
    ],
)
def test_only_the_best_tokens_can_be_chosen(sampling, kept):
    assert set(draws(sampling, [0.1, 0.4, 0.2, 0.3], 300)) == kept


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": -1.0}, "temperature -1.0 must be 0"),
        ({"temperature": 1.0, "top_k": 0}, "top_k 0 must be at least 1"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p 0.0 must be above 0"),
        ({"top_k": 5}, "would have no effect at temperature 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, words):
    with pytest.raises(UserError, match=words):
        Sampling(**settings)
