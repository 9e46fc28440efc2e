"""What a Pi0 or Pi0.5 policy is: lerobot's `config.json`, and sizes where they are not the published ones.

lerobot's file names sizes (`gemma_2b`, `gemma_300m`) and says nothing about the image tower and the vocabulary. A
folder with other sizes has a second file, `sizes.json`, in the form of `PiSizes`. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from loong_core.errors import ConfigError, Fault, UserError
from loong_vla.data.recordings import ACTION, STATE
from loong_vla.lerobot_folder.sizes_file import SIZES_FILE


@dataclass(frozen=True)
class GemmaSize:
    """Sizes of one stream of layers.

    Attributes:
        width: of the residual stream.
        depth: layers.
        mlp: inner width of the feed-forward.
        heads: query heads.
        kv_heads: key-value heads, a divisor of `heads`.
        head_dim: width of a head.
    """

    width: int
    depth: int
    mlp: int
    heads: int = 8
    kv_heads: int = 1
    head_dim: int = 256

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer's matrices."""
        attention = self.head_dim * self.width * 2 * (self.heads + self.kv_heads)
        return attention + 3 * self.width * self.mlp


GEMMA_SIZES = {
    "gemma_2b": GemmaSize(width=2048, depth=18, mlp=16384),
    "gemma_300m": GemmaSize(width=1024, depth=18, mlp=4096),
}


@dataclass(frozen=True)
class VisionSize:
    """Sizes of the SigLIP tower; the defaults are So400m/14's."""

    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_layers: int = 27
    num_heads: int = 16
    patch_size: int = 14


@dataclass(frozen=True)
class PiSizes:
    """Sizes of the whole policy.

    Attributes:
        language: the stream of images and text.
        expert: the stream of states and actions, with the same depth, heads and head width.
        vision: the image tower.
        vocab_size: rows of the text embedding.
    """

    language: GemmaSize = GEMMA_SIZES["gemma_2b"]
    expert: GemmaSize = GEMMA_SIZES["gemma_300m"]
    vision: VisionSize = VisionSize()
    vocab_size: int = 257152

    def faults(self, where: str) -> list[Fault]:
        """What does not fit together."""
        return [
            Fault(where, f"language has {name} {ours} and expert {theirs}", "the streams attend to each other: same")
            for name in ("depth", "heads", "kv_heads", "head_dim")
            if (ours := getattr(self.language, name)) != (theirs := getattr(self.expert, name))
        ]

    @staticmethod
    def read(values: Mapping[str, Any]) -> PiSizes:
        """From the form of `sizes.json`.

        Raises:
            TypeError: keys are missing or too many.
        """
        kinds = {"language": GemmaSize, "expert": GemmaSize, "vision": VisionSize}
        return PiSizes(**{key: kinds[key](**each) if key in kinds else each for key, each in values.items()})


@dataclass(frozen=True)
class PiConfig:
    """A policy.

    Attributes:
        kind: which of the two.
        cameras: names of the pictures it looks at, in order.
        state_dim: numbers in a robot's state.
        action_dim: numbers in an action.
        sizes: of the towers.
        image_size: height and width that pictures are brought to.
        chunk_size: actions predicted at once.
        n_action_steps: how many of these are carried out before it looks again.
        max_state_dim: width that states are padded to (Pi0).
        max_action_dim: width that actions are padded to.
        num_inference_steps: Euler steps of sampling.
        time_sampling_beta_alpha, time_sampling_beta_beta, time_sampling_scale, time_sampling_offset: a training time
            is `scale * Beta(alpha, beta) + offset`.
        min_period, max_period: of the sines that time is told by.
        tokenizer_max_length: longest prompt, in tokens.
        normalization: how states and actions are normalised: `QUANTILES`, `MEAN_STD`, `MIN_MAX` or `IDENTITY`.
        lerobot: the rest of lerobot's `config.json`, kept for saving.
    """

    kind: Literal["pi0", "pi05"]
    cameras: tuple[str, ...]
    state_dim: int
    action_dim: int
    sizes: PiSizes = PiSizes()
    image_size: int = 224
    chunk_size: int = 50
    n_action_steps: int = 50
    max_state_dim: int = 32
    max_action_dim: int = 32
    num_inference_steps: int = 10
    time_sampling_beta_alpha: float = 1.5
    time_sampling_beta_beta: float = 1.0
    time_sampling_scale: float = 0.999
    time_sampling_offset: float = 0.001
    min_period: float = 4e-3
    max_period: float = 4.0
    tokenizer_max_length: int = 200
    normalization: Mapping[str, str] = field(default_factory=dict)
    lerobot: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def state_in_prompt(self) -> bool:
        """Whether the state is told in the prompt (Pi0.5), and not by a token of its own (Pi0)."""
        return self.kind == "pi05"

    @property
    def clips(self) -> bool:
        """Normalised numbers may lie outside of [-1, 1]."""
        return False

    @property
    def home_embodiment(self) -> str:
        """Whose recordings are meant where a run file does not say."""
        return "robot"

    @property
    def widest_state(self) -> int | None:
        """Numbers that a state may have at most; None where it is told in the prompt."""
        return None if self.state_in_prompt else self.max_state_dim

    @property
    def num_layers(self) -> int:
        """Layers that names of its tensors count."""
        return self.sizes.language.depth

    @property
    def vocab_size(self) -> int:
        """Rows of the text embedding."""
        return self.sizes.vocab_size

    @property
    def prompt_length(self) -> int:
        """Tokens of a usual prompt, to reckon with before any is seen."""
        return self.tokenizer_max_length // 4

    def embodiment_faults(self, names: Mapping[str, str]) -> list[Fault]:
        """Any name will do."""
        return []

    def for_embodiments(self, names: Sequence[str]) -> PiConfig:
        """All embodiments share all weights."""
        return self

    @property
    def image_tokens(self) -> int:
        """Tokens of one picture."""
        return (self.image_size // self.sizes.vision.patch_size) ** 2

    def normalization_of(self, feature: str) -> str:
        """How a feature, `STATE` or `ACTION`, is normalised."""
        return self.normalization.get(feature, "QUANTILES" if self.kind == "pi05" else "MEAN_STD")

    def flops_per_sample(self, cameras: int, prompt_tokens: int) -> float:
        """Floating-point operations of forward and backward on one sample, with every parameter trained.

        What is not computed is not counted: the last layer's prefix has keys and values only.
        """
        language, expert, vision = self.sizes.language, self.sizes.expert, self.sizes.vision
        prefix = cameras * self.image_tokens + prompt_tokens
        suffix = self.chunk_size + (not self.state_in_prompt)
        tower = 4 * vision.hidden_size**2 + 2 * vision.hidden_size * vision.intermediate_size
        tower = vision.num_layers * tower + 3 * vision.patch_size**2 * vision.hidden_size
        kept = 2 * language.width * language.kv_heads * language.head_dim
        products = cameras * self.image_tokens * (tower + vision.hidden_size * language.width)
        products += prefix * ((language.depth - 1) * language.layer_parameters + kept)
        products += suffix * (expert.depth * expert.layer_parameters + 2 * self.max_action_dim * expert.width)
        conditioning = 3 * expert.width**2 * (2 * expert.depth + 1) + 2 * expert.width**2
        products += conditioning if self.kind == "pi05" else suffix * 3 * expert.width**2
        heads = language.heads * language.head_dim
        pairs = (language.depth - 1) * prefix**2 + expert.depth * suffix * (prefix + suffix)
        pairs = 2 * heads * pairs + 2 * vision.num_layers * cameras * self.image_tokens**2 * vision.hidden_size
        return 6.0 * products + 6.0 * pairs

    def to_json(self) -> dict[str, Any]:
        """Lerobot's `config.json`."""
        own = {name: getattr(self, name) for name in _SHARED}
        shape = [3, self.image_size, self.image_size]
        stated = self.lerobot.get("input_features", {})
        inputs: dict[str, Any] = {name: stated.get(name, {"type": "VISUAL", "shape": shape}) for name in self.cameras}
        inputs[STATE] = {"type": "STATE", "shape": [self.state_dim]}
        normalization = {"VISUAL": "IDENTITY"} | {name: self.normalization_of(name) for name in ("STATE", "ACTION")}
        return {
            "type": self.kind,
            **_LEROBOT_DEFAULTS,
            **self.lerobot,
            **own,
            "input_features": inputs,
            "output_features": {ACTION: {"type": "ACTION", "shape": [self.action_dim]}},
            "image_resolution": [self.image_size, self.image_size],
            "normalization_mapping": normalization,
        }

    def sizes_json(self) -> dict[str, Any] | None:
        """`sizes.json`; None where lerobot's names of sizes say it all."""
        named = replace(PiSizes(), **_named_sizes(self.lerobot))
        return None if self.sizes == named else asdict(self.sizes)


_SHARED = (
    "chunk_size",
    "n_action_steps",
    "max_state_dim",
    "max_action_dim",
    "num_inference_steps",
    "time_sampling_beta_alpha",
    "time_sampling_beta_beta",
    "time_sampling_scale",
    "time_sampling_offset",
    "min_period",
    "max_period",
    "tokenizer_max_length",
)
"""Keys of `config.json` that are called the same here."""

_LEROBOT_DEFAULTS: dict[str, Any] = {
    "n_obs_steps": 1,
    "device": None,
    "paligemma_variant": "gemma_2b",
    "action_expert_variant": "gemma_300m",
    "dtype": "float32",
    "empty_cameras": 0,
    "use_relative_actions": False,
}
_TOKENIZER_LENGTH = {"pi0": 48, "pi05": 200}
_UNSERVED = {"use_relative_actions": False, "rtc_config": None}


def read_pi_config(folder: Path, values: Mapping[str, Any]) -> PiConfig:
    """The policy that lerobot's `config.json` describes.

    Args:
        folder: the checkpoint folder, which may hold `sizes.json`.
        values: its `config.json`.

    Raises:
        ConfigError: with everything in it that cannot be served.
    """
    where = str(folder / "config.json")
    faults: list[Fault] = []
    kind = values.get("type")
    if kind not in ("pi0", "pi05"):
        raise ConfigError([Fault(where, f"type is {kind!r}", "pi0 and pi05 are served here")])
    for key, served in _UNSERVED.items():
        if values.get(key, served) != served:
            faults.append(Fault(where, f"{key} is {values[key]!r}", f"only {served} is served"))
    inputs, outputs = values.get("input_features") or {}, values.get("output_features") or {}
    cameras = tuple(name for name, each in inputs.items() if each.get("type") == "VISUAL")
    for name, features, kept in ((STATE, inputs, "input_features"), (ACTION, outputs, "output_features")):
        if name not in features:
            faults.append(Fault(where, f"{kept} has no {name}", "add it, with its shape"))
    height, width = values.get("image_resolution", (224, 224))
    if height != width:
        faults.append(Fault(where, f"image_resolution is {height}x{width}", "the image tower takes squares"))
    for key in ("paligemma_variant", "action_expert_variant"):
        if values.get(key, "gemma_2b") not in GEMMA_SIZES:
            faults.append(Fault(where, f"{key} is {values[key]!r}", f"known: {', '.join(GEMMA_SIZES)}"))
    if faults:
        raise ConfigError(faults)
    sizes = _read_sizes(folder, values)
    if faults := sizes.faults(str(folder / SIZES_FILE)):
        raise ConfigError(faults)
    shared = {name: values[name] for name in _SHARED if name in values}
    known = {each.name for each in fields(PiConfig)} | {"input_features", "output_features", "image_resolution", "type"}
    return PiConfig(
        kind=kind,
        cameras=cameras,
        state_dim=inputs[STATE]["shape"][0],
        action_dim=outputs[ACTION]["shape"][0],
        sizes=sizes,
        image_size=height,
        normalization=dict(values.get("normalization_mapping") or {}),
        lerobot={key: each for key, each in values.items() if key not in known or key == "input_features"},
        **({"tokenizer_max_length": _TOKENIZER_LENGTH[kind]} | shared),
    )


def overridden(config: PiConfig, path: Path, overrides: Mapping[str, Any]) -> PiConfig:
    """The policy with keys of its `config.json` replaced.

    Args:
        config: the policy.
        path: its folder, for errors.
        overrides: keys and their values.

    Raises:
        ConfigError: with everything that cannot be served.
    """
    return replace(read_pi_config(path, config.to_json() | dict(overrides)), sizes=config.sizes)


def _read_sizes(folder: Path, values: Mapping[str, Any]) -> PiSizes:
    file = folder / SIZES_FILE
    if not file.is_file():
        return replace(PiSizes(), **_named_sizes(values))
    try:
        return PiSizes.read(json.loads(file.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise UserError(f"{file} does not describe sizes of a policy: {error}") from error


def _named_sizes(values: Mapping[str, Any]) -> dict[str, GemmaSize]:
    names = {"language": "paligemma_variant", "expert": "action_expert_variant"}
    return {ours: GEMMA_SIZES[values[name]] for ours, name in names.items() if values.get(name) in GEMMA_SIZES}
