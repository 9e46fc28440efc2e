"""Reading a Hugging Face `config.json`: every key checked, all that is wrong told at once."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from loong_core.errors import ConfigError, Fault
from loong_core.nn.decoder_config import LinearScaling, Llama3Scaling, RotaryConfig, RotaryScaling

_REQUIRED = object()


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
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            return 1 if value is None else value
        self.fault(key, f"is {value!r}", "a positive integer is wanted")
        return 1

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        """A positive number; 1.0 stands in for one that is wrong."""
        value = self._value(key, default)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0):
            return 1.0 if value is None else float(value)
        self.fault(key, f"is {value!r}", "a positive number is wanted")
        return 1.0

    def coefficient(self, key: str, default: float = 0.0) -> float:
        """A number that is not negative; 0.0 stands in for one that is wrong."""
        value = self._value(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
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

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse a key, if it is there, whose value would change the model in a way that the family does not build."""
        value = self.hf.get(key, allowed[0])
        if value not in allowed:
            values = " or ".join(repr(each) for each in allowed)
            self.fault(key, f"{value!r} is not supported by the {self.family} family", f"supported: {values}")

    def no_sliding_window(self) -> None:
        """Refuse attention over a sliding window."""
        self.only("use_sliding_window", False, None)
        if "sliding_attention" in (self.hf.get("layer_types") or []):
            self.fault("layer_types", "asks for sliding_attention", "only full_attention is supported")

    def rotary(self, head_dim: int) -> RotaryConfig:
        """Rotary embedding, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
        new = self.hf.get("rope_parameters") or {}
        old = self.hf.get("rope_scaling") or {}
        where = "rope_parameters" if new else "rope_scaling"
        parameters: dict[str, Any] = {"rope_theta": self.hf.get("rope_theta", 10000.0)} | old | new
        if not isinstance(parameters["rope_theta"], int | float) or parameters["rope_theta"] <= 0:
            self.fault(f"{where}.rope_theta", f"is {parameters['rope_theta']!r}", "a positive number is wanted")
            parameters["rope_theta"] = 10000.0
        partial = parameters.get("partial_rotary_factor", self.hf.get("partial_rotary_factor", 1.0))
        dim, scaling = int(head_dim * partial), self._scaling(parameters, where)
        sections: tuple[Any, ...] = tuple(parameters.get("mrope_section") or ())
        if sections and (not all(isinstance(each, int) for each in sections) or sum(sections) != dim // 2):
            what = f"is {list(sections)}, of which the sum is not half the {dim} rotating dimensions of a head"
            self.fault(f"{where}.mrope_section", what)
            sections = ()
        interleaved = bool(parameters.get("mrope_interleaved", False))
        return RotaryConfig(float(parameters["rope_theta"]), dim, scaling, sections, interleaved)

    def fault(self, key: str, what: str, fix: str = "") -> None:
        """Add a fault of one key."""
        self.faults.append(Fault(f"config.json {key}", what, fix))

    def finish(self) -> None:
        """Raise what was found.

        Raises:
            ConfigError: if there was any fault.
        """
        if self.faults:
            raise ConfigError(self.faults)

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
        }.get(kind)
        if wanted is None:
            self.fault(
                f"{where}.rope_type", f"{kind!r} is not supported", "supported: default, dynamic, linear, llama3, mrope"
            )
            return None
        missing = [key for key in wanted if not isinstance(parameters.get(key), int | float)]
        if missing:
            self.fault(where, f"rope_type {kind} needs {', '.join(missing)} as numbers")
            return None
        if kind == "linear":
            return LinearScaling(float(parameters["factor"]))
        if kind == "llama3":
            factor, low, high = (float(parameters[key]) for key in wanted[:3])
            return Llama3Scaling(factor, low, high, int(parameters["original_max_position_embeddings"]))
        return None
