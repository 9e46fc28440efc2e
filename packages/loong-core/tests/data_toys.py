"""A tokenizer of bytes without any library, for tests of the data layer."""

from __future__ import annotations

from loong_core.data.token_store import TokenStore


class ByteEncoder:
    """Bytes as ids, 256 before each document, 257 after it."""

    vocab_size = 258
    prefix = (256,)
    suffix = (257,)
    fingerprint = "bytes of the tests"

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [list(text.encode("utf-8")) for text in texts]


def counting_store(lengths: list[int], first: int = 0) -> TokenStore:
    """Documents whose ids count up from `first` without repeating, so that each token says where it is from."""
    documents = []
    for length in lengths:
        documents.append(list(range(first, first + length)))
        first += length
    return TokenStore.from_documents(documents, vocab_size=1 << 20)
