"""Documents that are both trained on and held out: they make a validation loss look better than it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from loong_core.data.token_store import TokenStore


def shared_documents(train: Iterable[TokenStore], held_out: Iterable[TokenStore]) -> int:
    """How many held-out documents stand word for word in the training data.

    Only training documents as long as some held-out document are read.
    """
    wanted: dict[int, set[bytes]] = {}
    for store in held_out:
        for index in range(len(store)):
            wanted.setdefault(int(store.lengths[index]), set()).add(_digest(store, index))
    lengths = np.array(sorted(wanted), dtype=np.int64)
    shared: set[bytes] = set()
    for store in train:
        for index in np.flatnonzero(np.isin(store.lengths, lengths)).tolist():
            digest = _digest(store, index)
            if digest in wanted[int(store.lengths[index])]:
                shared.add(digest)
    return len(shared)


def _digest(store: TokenStore, index: int) -> bytes:
    return hashlib.blake2b(store.document(index).astype(np.int64).tobytes(), digest_size=16).digest()
