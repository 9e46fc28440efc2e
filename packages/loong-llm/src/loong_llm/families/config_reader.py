"""Reading a Hugging Face `config.json`: every key checked, all that is wrong told at once."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from loong_core.errors import ConfigError, Fault
from loong_core.nn.decoder_config import LinearScaling, Llama3Scaling, RotaryConfig, RotaryScaling

_REQUIRED = object()
_LARGEST = 1e30
"""No number of a config is as large; Python's integers may be larger than what a float holds."""


class ConfigReader:
    """Takes values out of a `config.json` and collects faults; `finish` raises them together.

    Args:
        hf: the parsed file.
        family: whose reader it is, for messages.
    """

    def __init__(self, hf: dict[str, Any], family: str) -> None:
        self.hf = hf
        self.family = family
        self.faults: list[Fault] = []

    def integer(self, key: str, default: Any = _REQUIRED) -> int:
        """A positive integer; 1 stands in for one that is wrong."""
        value = self._value(key, default)
        if value is None or (isinstance(value, int) and _is_number(value) and value > 0):
            return 1 if value is None else value
        self.fault(key, f"is {value!r}", "a positive integer is wanted")
        return 1

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        """A positive number; 1.0 stands in for one that is wrong."""
        value = self._value(key, default)
        if value is None or (_is_number(value) and value > 0):
            return 1.0 if value is None else float(value)
        self.fault(key, f"is {value!r}", "a positive number is wanted")
        return 1.0

    def coefficient(self, key: str, default: float = 0.0) -> float:
        """A number that is not negative; 0.0 stands in for one that is wrong."""
        value = self._value(key, default)
        if _is_number(value) and value >= 0:
            return float(value)
        self.fault(key, f"is {value!r}", "a number of at least 0 is wanted")
        return 0.0

    def choice(self, key: str, *allowed: str) -> str:
        """One of some words, by default the first."""
        value = self._value(key, allowed[0])
        if value in allowed:
            return value
        self.fault(key, f"is {value!r}", f"one of {', '.join(allowed)} is wanted")
        return allowed[0]

    def flag(self, key: str, default: Any = _REQUIRED) -> bool:
        """True or false; false stands in for what is neither."""
        value = self._value(key, default)
        if isinstance(value, bool) or value is None:
            return bool(value)
        self.fault(key, f"is {value!r}", "true or false is wanted")
        return False

    def kv_heads(self, heads: int) -> int:
        """`num_key_value_heads`, by default as many as heads, which they divide."""
        value = self.integer("num_key_value_heads", heads)
        if heads % value:
            self.fault("num_key_value_heads", f"{value} does not divide {heads} heads")
        return value

    def numbers(self, key: str) -> list[int]:
        """A list of integers, empty where there is none."""
        value = self.hf.get(key) or []
        if isinstance(value, list) and all(isinstance(each, int) for each in value):
            return value
        self.fault(key, f"is {value!r}", "a list of integers is wanted")
        return []

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse a key, if it is there, whose value would change the model in a way that the family does not build."""
        value = self.hf.get(key, allowed[0])
        if value not in allowed:
            values = " or ".join(repr(each) for each in allowed)
            self.fault(key, f"{value!r} is not supported by the {self.family} family", f"supported: {values}")

    def no_sliding_window(self) -> None:
        """Refuse attention over a sliding window."""
        self.only("use_sliding_window", False, None)
        kinds = self.hf.get("layer_types") or []
        if not isinstance(kinds, list):
            self.fault("layer_types", f"is {kinds!r}", "a list is wanted")
        elif "sliding_attention" in kinds:
            self.fault("layer_types", "asks for sliding_attention", "only full_attention is supported")

    def rotary(self, head_dim: int) -> RotaryConfig:
        """Rotary embedding, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
        new, old = self._mapping("rope_parameters"), self._mapping("rope_scaling")
        where = "rope_parameters" if new else "rope_scaling"
        parameters: dict[str, Any] = {"rope_theta": self.hf.get("rope_theta", 10000.0)} | old | new
        partial = parameters.get("partial_rotary_factor", self.hf.get("partial_rotary_factor", 1.0))
        if not _is_number(parameters["rope_theta"]) or parameters["rope_theta"] <= 0:
            self.fault(f"{where}.rope_theta", f"is {parameters['rope_theta']!r}", "a positive number is wanted")
            parameters["rope_theta"] = 10000.0
        if not _is_number(partial) or not 0 < partial <= 1:
            self.fault("partial_rotary_factor", f"is {partial!r}", "a number above 0 and up to 1 is wanted")
            partial = 1.0
        dim, scaling = int(head_dim * partial), self._scaling(parameters, where)
        sections = parameters.get("mrope_section") or []
        if not isinstance(sections, list) or not all(isinstance(each, int) for each in sections):
            self.fault(f"{where}.mrope_section", f"is {sections!r}", "a list of integers is wanted")
            sections = []
        if sections and sum(sections) != dim // 2:
            what = f"is {sections}, of which the sum is not half the {dim} rotating dimensions of a head"
            self.fault(f"{where}.mrope_section", what)
            sections = []
        interleaved = bool(parameters.get("mrope_interleaved", False))
        return RotaryConfig(float(parameters["rope_theta"]), dim, scaling, tuple(sections), interleaved)

    def fault(self, key: str, what: str, fix: str = "") -> None:
        """Add a fault of one key; one that is found again is not told again."""
        found = Fault(f"config.json {key}", what, fix)
        if found not in self.faults:
            self.faults.append(found)

    def finish(self) -> None:
        """Raise what was found, also in keys that no family reads but the framework does.

        Raises:
            ConfigError: if there was any fault.
        """
        if self.hf.get("max_position_embeddings") is not None:
            self.integer("max_position_embeddings")
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = self.hf.get(key)
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(isinstance(each, int) and not isinstance(each, bool) and each >= -1 for each in ids):
                self.fault(key, f"is {value!r}", "an id of a token, or a list of them, is wanted")
        if self.faults:
            raise ConfigError(self.faults)

    def _mapping(self, key: str) -> dict[str, Any]:
        """The mapping under a key, empty where there is none."""
        value = self.hf.get(key) or {}
        if isinstance(value, dict):
            return value
        self.fault(key, f"is {value!r}", "a mapping is wanted")
        return {}

    def _value(self, key: str, default: Any) -> Any:
        """The key's value; None (with a fault) where a required one is missing."""
        value = self.hf.get(key)
        if value is not None:
            return value
        if default is not _REQUIRED:
            return default
        near = get_close_matches(key, list(self.hf), n=1)
        self.fault(key, "is missing", f"is it {near[0]}?" if near else f"every {self.family} model needs it")
        return None

    def _scaling(self, parameters: dict[str, Any], where: str) -> RotaryScaling | None:
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        wanted = {
            "default": (),
            "mrope": (),
            "dynamic": (),  # up to max_position_embeddings, beyond which no run goes, it is the default
            "linear": ("factor",),
            "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        }.get(kind if isinstance(kind, str) else "")
        if wanted is None:
            self.fault(
                f"{where}.rope_type", f"{kind!r} is not supported", "supported: default, dynamic, linear, llama3, mrope"
            )
            return None
        missing = [key for key in wanted if not _is_number(parameters.get(key)) or parameters[key] <= 0]
        if missing:
            self.fault(where, f"rope_type {kind} needs {', '.join(missing)} as positive numbers")
            return None
        if kind == "linear":
            return LinearScaling(float(parameters["factor"]))
        if kind == "llama3":
            factor, low, high = (float(parameters[key]) for key in wanted[:3])
            return Llama3Scaling(factor, low, high, int(parameters["original_max_position_embeddings"]))
        return None


def _is_number(value: Any) -> bool:
    """Whether a JSON value is a number that is finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST
