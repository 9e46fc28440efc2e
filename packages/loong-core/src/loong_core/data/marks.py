"""Token ids that each carry a mark: whether the token is trained on. A store keeps them so, in one array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loong_core.data.token_store import Ids


def mark(ids: NDArray[Any], trained: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Ids with their marks: twice the id, plus one where the token is trained on."""
    return 2 * ids.astype(np.int64) + trained


def unmark(marked: Ids) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The ids, and whether each is trained on."""
    wide = marked.astype(np.int64)
    return wide >> 1, (wide & 1).astype(np.bool_)
