"""What `inspect-data` shows of a batch."""

import json

from samples_of_talk import MULTI_TURN

from loong_llm.conversations.corpus import ConversationSettings, ConversationSource, open_conversations
from loong_llm.conversations.encoding import ConversationEncoder, RenderSettings
from loong_llm.conversations.inspection import TRAINED, inspect_batches
from loong_llm.tokenizer import load_tokenizer


def shown(tmp_path):
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": MULTI_TURN}) + "\n")
    encoder = ConversationEncoder(load_tokenizer("bytes"), RenderSettings("plain"))
    settings = ConversationSettings((ConversationSource(str(tmp_path / "talk.jsonl")),), tmp_path / "cache", 128)
    stream = open_conversations(settings, encoder).stream(global_batch_size=1, micro_batch_size=1)
    return list(inspect_batches(stream.next_step(), encoder.tokenizer))


def test_the_text_is_whole_and_the_trained_parts_have_their_colour(tmp_path):
    _, headline, sequence, filler = shown(tmp_path)
    assert "128 tokens in 2 sequences, 28 trained on" in headline.plain
    text = sequence.plain.split("] ", 1)[1]
    assert (
        text
        == "<|begin|>User: Hello\nAssistant: Hi there.<|end|>\nUser: Two plus two?\nAssistant: Four, naïvely.<|end|>"
    )
    green = "".join(sequence.plain[span.start : span.end] for span in sequence.spans if span.style in TRAINED)
    assert green == " Hi there.<|end|> Four, naïvely.<|end|>"
    assert "places that nothing fills" in filler.plain
