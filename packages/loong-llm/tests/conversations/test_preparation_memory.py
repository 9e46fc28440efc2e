"""Preparing holds a few blocks, however large the file is."""

import json
import tracemalloc

import numpy as np

from loong_llm.conversations.encoding import EncodedSample
from loong_llm.conversations.preparation import Recipe, prepare
from loong_llm.conversations.records import BLOCK_BYTES, record_blocks
from loong_llm.conversations.rendering import RenderedText


class LetterEncoder:
    """A token a letter, without a template: the reading is what is looked at."""

    vocab_size = 128

    def render(self, conversation):
        return [RenderedText(conversation.messages[-1]["content"], [(0, 1)])]

    def encode(self, texts):
        return [EncodedSample(np.full(len(text.text), 65, np.int32), np.ones(len(text.text), bool)) for text in texts]


def test_memory_stays_flat_over_a_file_of_many_blocks(tmp_path):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b" * 2000}]
    line = json.dumps({"messages": messages}) + "\n"
    path = tmp_path / "talk.jsonl"
    path.write_text(line * (24 * BLOCK_BYTES // len(line)))
    tracemalloc.start()
    try:
        samples = sum(
            done.count.samples for _, done in prepare(record_blocks(path, "jsonl"), Recipe(LetterEncoder(), "messages"))
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert samples == 24 * BLOCK_BYTES // len(line)
    assert peak < 12 * BLOCK_BYTES
