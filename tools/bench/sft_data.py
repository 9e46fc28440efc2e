"""Preparing conversations, ours against the usual way: `python -m tools.bench.sft_data`.

The text is `library_functions` of `mixes/` as OpenAI messages, the tokenizer a BPE trained on it. Timed are, on one
file and in one run: ours (read, check, render, find the trained tokens, tokenise, write a store) in one process and in
two, the tokenizer alone on the rendered texts (the ceiling), and the peer's way, as trl's SFTTrainer prepares
conversations: `datasets.map` of `apply_chat_template(..., return_assistant_tokens_mask=True)`. Each way is run three
times in turn, so that the tokenizer's own cache of words serves all alike; the fastest counts.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from loong_llm.chat_templates import named_template
from loong_llm.conversations.corpus import ConversationSource, prepare_source
from loong_llm.conversations.encoding import ConversationEncoder, RenderSettings
from loong_llm.conversations.messages import conversation
from tools.bench.mixes.measure import functions
from tools.bench.record import FOLDER, append

_ANSWER = '{{- "<|im_start|>assistant\\n" ~ message.content -}}'
_MARKED = '{{- "<|im_start|>assistant\\n" }}{% generation %}{{ message.content }}{% endgeneration %}'


def write_conversations(path: Path) -> list[str]:
    """Write the conversations; returns their texts."""
    texts = list(functions())
    with path.open("w", encoding="utf-8") as stream:
        for text in texts:
            question, answer = text.removeprefix("User: ").split("\nAssistant: ", 1)
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            stream.write(json.dumps({"messages": messages}) + "\n")
    return texts


def train_tokenizer(texts: list[str]) -> Any:
    """A byte-level BPE of 16,000 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=16_000, special_tokens=specials, initial_alphabet=alphabet)
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=specials[2], pad_token=specials[0])


def took(act: Callable[[], Any]) -> tuple[float, float]:
    """Wall seconds, and processor seconds of this process and of those it started."""
    start, before = time.perf_counter(), sum(os.times()[:4])
    act()
    return time.perf_counter() - start, sum(os.times()[:4]) - before


def main() -> None:
    """Time every way and print a line for each."""
    import datasets

    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--record", action="store_true", help="add a line to docs/benchmarks/sft_data.jsonl")
    record = arguments.parse_args().record
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "talk.jsonl"
        tokenizer = train_tokenizer(write_conversations(path))
        encoder = ConversationEncoder(tokenizer, RenderSettings("chatml"))
        source = ConversationSource(str(path))
        rendered = [encoder.render(conversation(json.loads(line)["messages"]))[0].text for line in path.open()]
        tokens = sum(len(ids) for ids in tokenizer(rendered, add_special_tokens=False).input_ids)

        def ceiling() -> None:
            for first in range(0, len(rendered), 256):
                tokenizer.backend_tokenizer.encode_batch(rendered[first : first + 256], add_special_tokens=False)

        tokenizer.chat_template = named_template("chatml").text.replace(_ANSWER, _MARKED)
        loaded = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=folder)

        def peer() -> None:
            loaded.map(
                lambda row: tokenizer.apply_chat_template(
                    row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
                ),
                remove_columns=["messages"],
                load_from_cache_file=False,
            )

        ways = {
            "tokenizer alone": ceiling,
            "ours": lambda: prepare_source(source, Path(tempfile.mkdtemp(dir=folder)), encoder),
            "ours, two processes": lambda: prepare_source(
                source, Path(tempfile.mkdtemp(dir=folder)), encoder, workers=2
            ),
            f"datasets {version('datasets')} map, transformers {version('transformers')}": peer,
        }
        print(f"{path.stat().st_size / 1e6:.1f} MB, {len(rendered):,} conversations, {tokens:,} tokens")
        rounds = [{name: took(way) for name, way in ways.items()} for _ in range(3)]
        found = {name: min(each[name] for each in rounds) for name in ways}
        for name, (wall, cpu) in found.items():
            print(f"{name}: {wall:.2f} s, {cpu:.2f} s of processors, {tokens / wall / 1e6:.3f} M tokens/s")
        if record:
            append(
                FOLDER / "sft_data.jsonl",
                {
                    "conversations": len(rendered),
                    "tokens": tokens,
                    "datasets": version("datasets"),
                    "tokenizers": version("tokenizers"),
                    "wall_seconds": {name: round(wall, 3) for name, (wall, _) in found.items()},
                    "processor_seconds": {name: round(cpu, 3) for name, (_, cpu) in found.items()},
                },
            )


if __name__ == "__main__":
    main()
