"""Memory while a file far larger than it is prepared and streamed: `python -m tools.bench.streaming_memory documents`.

A text file (documents) or a file of JSON lines (conversations) is generated, and the process forbids itself, by
RLIMIT_DATA, more than so many MiB of memory of its own beyond what its imports took: whoever held the file, its tokens
or its samples would be ended. Then the file is read, checked, tokenised, stored, packed and streamed by the code of a
training run. The tokenizer is one byte a token, so that the reading is what is looked at. Pages of mapped files are the
system's, which takes them back when it needs them, and do not count. `--record` adds a line to
docs/benchmarks/streaming_memory.jsonl.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from loong_core.data.corpus import CorpusSettings, open_corpus
from loong_core.data.sources import SourceSpec
from loong_core.data.stream import Stream
from loong_llm.conversations.corpus import ConversationSettings, ConversationSource, open_conversations
from loong_llm.conversations.encoding import EncodedSample
from loong_llm.conversations.messages import Conversation
from loong_llm.conversations.rendering import RenderedText
from tools.bench.record import FOLDER, append

SEQUENCE_LENGTH = 2048
_WORDS = "the quick brown fox jumps over a lazy dog and writes of it at some length "
_LINE = (_WORDS * 14)[:1000]


class ByteDocuments:
    """A token a byte, as tokenising asks for it."""

    vocab_size = 257
    prefix: tuple[int, ...] = ()
    suffix = (256,)
    fingerprint = hashlib.sha256(b"bytes").hexdigest()

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """The bytes of each text."""
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]


class ByteConversations:
    """What was said, one turn a line, a token a byte; what the assistant says is trained on."""

    vocab_size = 257
    fingerprint = hashlib.sha256(b"bytes of conversations").hexdigest()

    def render(self, conversation: Conversation) -> list[RenderedText]:
        """One text, with the spans of the assistant's turns."""
        text, spans = "", []
        for message in conversation.messages:
            said = f"{message['content']}\n"
            if message["role"] == "assistant":
                spans.append((len(text), len(text) + len(said)))
            text += said
        return [RenderedText(text, spans)]

    def encode(self, texts: Sequence[RenderedText]) -> list[EncodedSample]:
        """The bytes of each (all ASCII here), and which are trained on."""
        samples = []
        for rendered in texts:
            trained = np.zeros(len(rendered.text), np.bool_)
            for start, stop in rendered.spans:
                trained[start:stop] = True
            samples.append(EncodedSample(np.frombuffer(rendered.text.encode(), np.uint8).astype(np.int32), trained))
        return samples

    def warnings(self) -> list[str]:
        """None."""
        return []


def write_documents(path: Path, megabytes: int) -> None:
    """Text, a line of 1 kB after the other, an empty line between documents of 64 lines; about so many MB."""
    block = "".join(f"{_LINE[:990]}{line:>9}\n" for line in range(64)) + "\n"
    with path.open("w", encoding="utf-8") as stream:
        for _ in range(megabytes * 1_000_000 // len(block)):
            stream.write(block)


def write_conversations(path: Path, megabytes: int) -> None:
    """Questions and answers of 1 kB each as OpenAI messages; about so many MB."""
    asked, answered = '{"role": "user", "content": "%s"}', '{"role": "assistant", "content": "%s"}'
    line = f'{{"messages": [{asked % _LINE}, {answered % _LINE}]}}\n'
    with path.open("w", encoding="utf-8") as stream:
        for _ in range(megabytes * 1_000_000 // len(line)):
            stream.write(line)


def own_memory() -> int:
    """Bytes of memory that are this process's own, as RLIMIT_DATA counts them."""
    return _status("VmData")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


def opened(kind: str, path: Path, cache: Path) -> Stream:
    """The training stream of the file, as a run opens it."""
    sizes = {"global_batch_size": 8, "micro_batch_size": 2}
    if kind == "documents":
        settings = CorpusSettings((SourceSpec(str(path)),), cache, SEQUENCE_LENGTH)
        return open_corpus(settings, ByteDocuments()).stream(**sizes)  # type: ignore[arg-type]
    talk = ConversationSettings((ConversationSource(str(path)),), cache, SEQUENCE_LENGTH)
    return open_conversations(talk, ByteConversations()).stream(**sizes)  # type: ignore[arg-type]


def main() -> None:
    """Generate, forbid, prepare, stream, print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("kind", choices=["documents", "conversations"])
    arguments.add_argument("--megabytes", type=int, default=4096, help="of the generated file")
    arguments.add_argument("--limit", type=int, default=512, help="MiB of memory beyond what imports took")
    arguments.add_argument("--steps", type=int, default=2000, help="read from the stream, 16,384 tokens each")
    arguments.add_argument("--folder", help="where the file and its tokens go for the time being")
    arguments.add_argument("--record", action="store_true")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        conversations = given.kind == "conversations"
        path = Path(temporary) / ("talk.jsonl" if conversations else "text.txt")
        (write_conversations if conversations else write_documents)(path, given.megabytes)
        began_with = own_memory()
        limit = began_with + given.limit * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        began = time.perf_counter()
        stream = opened(given.kind, path, Path(temporary) / "cache")
        prepared = time.perf_counter() - began
        tokens, most = 0, own_memory()
        began = time.perf_counter()
        for _ in range(given.steps):
            tokens += sum(len(batch.tokens) for batch in stream.next_step())
            most = max(most, own_memory())
        figures = {
            "kind": given.kind,
            "file_megabytes": round(path.stat().st_size / 1e6),
            "limit_mib": given.limit,
            "imports_mib": round(began_with / 2**20),
            "most_beyond_mib_while_streaming": round((most - began_with) / 2**20),
            "prepare_seconds": round(prepared, 1),
            "streamed_tokens": tokens,
            "streamed_tokens_a_second": round(tokens / (time.perf_counter() - began)),
        }
        print(", ".join(f"{name} {value}" for name, value in figures.items()))
        if given.record:
            append(FOLDER / "streaming_memory.jsonl", figures)


if __name__ == "__main__":
    main()
