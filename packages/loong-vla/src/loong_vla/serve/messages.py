"""Messages as openpi's client writes them: msgpack, with arrays as a map of their bytes, dtype and shape."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from loong_core.errors import UserError

_PLAIN_KINDS = "biufSU"
"""Kinds of numbers, truth values and texts: what an array may hold."""


def pack(value: Any) -> bytes:
    """A message."""
    packed = msgpack.packb(value, default=_pack_array)
    assert packed is not None  # it is, unless an autoreset Packer is used
    return packed


def unpack(message: bytes) -> Any:
    """What a message says.

    Raises:
        UserError: it is none.
    """
    try:
        return msgpack.unpackb(message, object_hook=_unpack_array)
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise UserError(f"the message is not msgpack with arrays: {type(error).__name__}: {error}") from error


def _pack_array(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in _PLAIN_KINDS:
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic) and value.dtype.kind in _PLAIN_KINDS:
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"{type(value).__name__} has no place in a message")


def _unpack_array(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" in value:
        return np.frombuffer(value[b"data"], _plain(value[b"dtype"])).reshape(value[b"shape"]).copy()
    if b"__npgeneric__" in value:
        return _plain(value[b"dtype"]).type(value[b"data"])
    return value


def _plain(dtype: Any) -> np.dtype:
    found = np.dtype(dtype.decode() if isinstance(dtype, bytes) else dtype)
    if found.kind not in _PLAIN_KINDS:
        raise ValueError(f"an array of {found} is not taken")
    return found
