"""Reading diffusers' `config.json`, every fault of it told at once; imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from loong_core.errors import ConfigError, Fault


class ConfigReader:
    """Takes keys out of a config one by one and remembers what is wrong with them.

    A faulty key gives 2, so that what is computed from it does not fail before `finish` tells of it.
    """

    def __init__(self, hf: dict[str, Any]) -> None:
        self._hf = hf
        self._seen = {key for key in hf if key.startswith("_")}
        self._faults: list[Fault] = []

    def fault(self, key: str, what: str) -> None:
        """Note a fault."""
        self._faults.append(Fault(f"config.json {key}", what, "take the config of a model that is served"))

    def whole(self, key: str, default: int | None = None) -> int:
        """A number of at least 1."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            self.fault(key, "is missing" if value is None else f"is {value!r}, not a whole number above 0")
            return 2
        return value

    def whole_or_none(self, key: str) -> int | None:
        """A number of at least 1, or null, which is also what a missing key means."""
        return None if self._hf.get(key) is None and self._take(key, None) is None else self.whole(key)

    def whole_numbers(self, key: str, count: int, default: Sequence[int] | None = None) -> list[int]:
        """So many numbers of at least 1."""
        value = self._take(key, default)
        good = isinstance(value, (list, tuple)) and len(value) == count
        if not good or not all(type(each) is int and 1 <= each < 2**31 for each in value):
            self.fault(key, f"is {value!r}, not {count} whole numbers above 0")
            return [2] * count
        return list(value)

    def number(self, key: str, default: float) -> float:
        """A number above 0."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            self.fault(key, f"is {value!r}, not a number above 0")
            return default
        return float(value)

    def truth(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            self.fault(key, f"is {value!r}, neither true nor false")
            return default
        return value

    def one_of(self, key: str, served: Sequence[str], default: str) -> str:
        """One of some words."""
        value = self._take(key, default)
        if value not in served:
            self.fault(key, f"is {value!r}; one of {', '.join(served)} is served")
            return default
        return str(value)

    def only(self, key: str, served: Any, default: Any) -> None:
        """A key of which a single value is served."""
        if (value := self._take(key, default)) != served:
            self.fault(key, f"is {value!r}; {served!r} is served")

    def finish(self, ignored: Iterable[str] = ()) -> None:
        """Raise what was found, keys that nobody asked for included.

        Raises:
            ConfigError: with every fault.
        """
        for key in self._hf.keys() - self._seen - set(ignored):
            self.fault(key, "is not known, and might change what the model computes")
        if self._faults:
            raise ConfigError(sorted(self._faults, key=str))

    def _take(self, key: str, default: Any) -> Any:
        self._seen.add(key)
        return self._hf.get(key, default)
