"""What a GR00T policy is: lerobot's `config.json`, and the model that it stands on. Imports no torch.

lerobot's file says nothing about the model's sizes, which it takes from the published one; here these ship with the
package. A folder with another model has it in `sizes.json`, in the form of NVIDIA's `config.json` with the
vision-language model's own configuration as `backbone_config`. NVIDIA's folders are read too, as what to train from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, cached_property
from importlib.resources import files
from math import prod
from typing import Any, Literal

from loong_core.errors import ConfigError, Fault
from loong_vla.data.recordings import ACTION, STATE
from loong_vla.families.groot.backbones import eagle_parts, qwen_parts
from loong_vla.families.groot.config import GrootHeadConfig, read_head_config
from loong_vla.families.groot.pictures import PictureFrame
from loong_vla.lerobot_folder.sizes_file import SIZES_FILE
from loong_vlm.parts import ModelParts

Version = Literal["n1.6", "n1.7"]
VERSIONS: dict[str, Version] = {"groot": "n1.7", "groot_n1_6": "n1.6", "Gr00tN1d7": "n1.7", "Gr00tN1d6": "n1.6"}
"""By `type` of lerobot's folders (which know N1.7 only) and `model_type` of NVIDIA's."""
KINDS: dict[Version, str] = {"n1.7": "groot", "n1.6": "groot_n1_6"}

EMBODIMENTS: dict[Version, dict[str, int]] = {
    "n1.7": {
        "oxe_droid_relative_eef_relative_joint": 24,
        "xdof_relative_eef_relative_joint": 27,
        "xdof_relative_eef_relative_joint_subtask": 27,
        "real_g1_relative_eef_relative_joints": 25,
        "real_r1_pro_sharpa_relative_eef": 26,
        "real_r1_pro_sharpa_relative_eef_human": 26,
        "real_r1_pro_sharpa_relative_eef_maxinsights": 26,
        "real_r1_pro_sharpa_relative_eef_mecka": 26,
        "unitree_g1_full_body_with_waist_height_nav_cmd": 25,
        "simpler_env_google": 0,
        "simpler_env_widowx": 1,
        "libero_sim": 2,
        "new_embodiment": 10,
    },
    "n1.6": {
        "oxe_google": 0,
        "oxe_widowx": 1,
        "libero_panda": 2,
        "unitree_g1": 8,
        "new_embodiment": 10,
        "robocasa_panda_omron": 13,
        "gr1": 20,
    },
}
"""Numbers of the published models' embodiments; the others of the 32 are free."""

USUAL_PROMPT = 24
"""Tokens of a usual task and what is written around it."""

_LEROBOT_DEFAULTS: dict[str, Any] = {
    "n_obs_steps": 1,
    "device": None,
    "base_model_path": "nvidia/GR00T-N1.7-3B",
    "action_decode_transform": None,
    "use_relative_actions": False,
    "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "IDENTITY", "ACTION": "IDENTITY"},
}


@cache
def published(version: Version) -> dict[str, Any]:
    """The published model in the form of `sizes.json`."""
    file = files("loong_vla") / "configs" / "groot" / f"gr00t-{version}.json"
    return json.loads(file.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class GrootConfig:
    """A policy.

    Attributes:
        version: which GR00T.
        cameras: names of the pictures it looks at, in order.
        state_dim: numbers in a robot's state.
        action_dim: numbers in an action.
        model: sizes of the model, in the form of `sizes.json`.
        chunk_size: actions predicted at once, at most the model's horizon.
        n_action_steps: how many of these are carried out before it looks again.
        embodiment: whose policy it is first of all.
        ids: numbers of the embodiments, by name.
        held: names of the embodiments whose weights are held, in the order in which they are counted; empty: all.
        lerobot: the rest of lerobot's `config.json`, kept for saving.
    """

    version: Version
    cameras: tuple[str, ...]
    state_dim: int
    action_dim: int
    model: Mapping[str, Any] = field(repr=False)
    chunk_size: int = 40
    n_action_steps: int = 40
    embodiment: str = "new_embodiment"
    ids: Mapping[str, int] = field(default_factory=lambda: EMBODIMENTS["n1.7"], repr=False)
    held: tuple[str, ...] = ()
    lerobot: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def clips(self) -> bool:
        """Normalised numbers are kept within [-1, 1], as the published models were trained."""
        return True

    @property
    def prompt_length(self) -> int:
        """Tokens of a usual prompt, to reckon with before any is seen."""
        return USUAL_PROMPT

    @property
    def kind(self) -> str:
        """As a folder's `config.json` calls it."""
        return KINDS[self.version]

    @cached_property
    def head(self) -> GrootHeadConfig:
        """The action head, with the embodiments that are held."""
        active = tuple(dict.fromkeys(self.ids[name] for name in self.held)) or None
        return read_head_config(SIZES_FILE, self.model, active)

    @cached_property
    def parts(self) -> ModelParts:
        """The vision-language model, cut off after the layer that is asked for."""
        hf, layers = self.model["backbone_config"], int(self.model["select_layer"])
        if self.version == "n1.7":
            return qwen_parts(hf, layers)
        return eagle_parts(hf, layers, (self.frame.height, self.frame.width))

    @cached_property
    def frame(self) -> PictureFrame:
        """How pictures are brought to the tower's size."""
        return PictureFrame.read(self.model)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Frames, rows and columns of a picture's patches."""
        patch = self.patch
        return 1, self.frame.height // patch, self.frame.width // patch

    @property
    def patch(self) -> int:
        """Pixels along a side of a patch."""
        return int(self.model["backbone_config"]["vision_config"]["patch_size"])

    @property
    def temporal(self) -> int:
        """Frames that a patch repeats a picture for."""
        return int(self.model["backbone_config"]["vision_config"].get("temporal_patch_size", 1))

    @property
    def max_action_dim(self) -> int:
        """Width that actions are padded to."""
        return self.head.action_dim

    @property
    def widest_state(self) -> int | None:
        """Width that states are padded to."""
        return self.head.state_dim

    @property
    def num_layers(self) -> int:
        """Layers that names of its tensors count; each part's rules count their own."""
        return self.head.num_layers

    @property
    def vocab_size(self) -> int:
        """Rows of the text embedding."""
        return self.parts.language.config.vocab_size

    @property
    def home_embodiment(self) -> str:
        """Whose policy it is first of all."""
        return self.embodiment

    def normalization_of(self, feature: str) -> str:
        """From the range of a feature, or of all but its outermost hundredths, to [-1, 1]."""
        return "QUANTILES" if self.model.get("use_percentiles", True) else "MIN_MAX"

    def embodiment_faults(self, names: Mapping[str, str]) -> list[Fault]:
        """Embodiments that have no weights in the model."""
        faults = []
        for where, name in names.items():
            if name in self.ids:
                continue
            near = get_close_matches(name, self.ids, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            known = ", ".join(self.ids)
            what = f"the policy has no embodiment {name!r}"
            faults.append(Fault(where, what, f"{hint}known: {known}; a robot of your own is new_embodiment"))
        return faults

    def for_embodiments(self, names: Sequence[str]) -> GrootConfig:
        """The same policy, first of all that of the first name, holding these embodiments' weights only.

        Raises:
            ConfigError: some are not known.
        """
        if faults := self.embodiment_faults({f"embodiment {name}": name for name in names}):
            raise ConfigError(faults)
        return replace(self, embodiment=names[0], held=tuple(names))

    def place_of(self, embodiment: str) -> int:
        """Of an embodiment, among the weights that are held."""
        return self.head.active.index(self.ids[embodiment])

    def flops_per_sample(self, cameras: int, prompt_tokens: int, *, backbone_trained: bool = True) -> float:
        """Floating-point operations of forward and backward on one sample.

        What is not computed is not counted: layers after the last kept one, the vocabulary's head, and the backward of
        a vision-language model of which nothing is trained.
        """
        seeing = (3.0 if backbone_trained else 1.0) * self._backbone_flops(cameras, prompt_tokens)
        return seeing + 3.0 * self._head_flops(cameras, prompt_tokens)

    def _backbone_flops(self, cameras: int, prompt_tokens: int) -> float:
        """Of a forward: the tower on all pictures, the language model on their features and the prompt."""
        language = self.parts.language.config
        tokens = cameras * self.features + prompt_tokens
        products = language.matmul_parameters() - language.vocab_size * language.hidden_size
        pairs = language.attention.num_heads * language.attention.head_dim * language.num_layers * tokens**2
        return 2.0 * (products * tokens + pairs) + cameras * self.parts.image_flops(self.grid)

    def _head_flops(self, cameras: int, prompt_tokens: int) -> float:
        """Of a forward."""
        head = self.head
        width, vl, acting = head.width, head.vl_width, head.horizon + 1
        features, tokens = cameras * self.features, cameras * self.features + prompt_tokens
        seen = len(head.text_blocks) * prompt_tokens + len(head.image_blocks) * features
        crossing = len(head.text_blocks) + len(head.image_blocks)
        among = head.num_layers - crossing
        products = head.vl_layers * 12 * vl**2 * tokens + 2 * vl * width * seen
        products += acting * width**2 * (12 * among + 10 * crossing) + 2 * width**2 * (head.num_layers + 1)
        products += acting * (head.action_dim * width + 3 * width**2 + width * head.output_width)
        products += acting * head.hidden_width * (head.output_width + head.action_dim)
        pairs = 2 * head.vl_layers * vl * tokens**2 + 2 * width * acting * (among * acting + seen)
        return 2.0 * (products + pairs)

    @property
    def features(self) -> int:
        """Tokens of one picture."""
        return prod(self.parts.projector.feature_grid(self.grid))

    def to_json(self) -> dict[str, Any]:
        """Lerobot's `config.json`."""
        stated = self.lerobot.get("input_features", {})
        shape = [3, self.frame.height, self.frame.width]
        inputs: dict[str, Any] = {name: stated.get(name, {"type": "VISUAL", "shape": shape}) for name in self.cameras}
        inputs[STATE] = {"type": "STATE", "shape": [self.state_dim]}
        return {
            "type": self.kind,
            **_LEROBOT_DEFAULTS,
            **self.lerobot,
            "chunk_size": self.chunk_size,
            "n_action_steps": self.n_action_steps,
            "max_state_dim": self.head.state_dim,
            "max_action_dim": self.head.action_dim,
            "embodiment_tag": self.embodiment,
            "input_features": inputs,
            "output_features": {ACTION: {"type": "ACTION", "shape": [self.action_dim]}},
        }

    def sizes_json(self) -> dict[str, Any] | None:
        """`sizes.json`; None where the model is the published one."""
        told = dict(self.model)
        if dict(self.ids) != EMBODIMENTS[self.version]:
            told["embodiment_ids"] = dict(self.ids)
        return None if told == published(self.version) else told

    def faults(self, where: str) -> list[Fault]:
        """What keeps it from being trained or used: parts that contradict each other, or are not told."""
        faults = []
        features = "set model.overrides.input_features and output_features, as in lerobot's config.json"
        if not self.cameras:
            faults.append(Fault(where, "input_features names no camera", features))
        for name, dim, most in (
            (STATE, self.state_dim, self.widest_state),
            (ACTION, self.action_dim, self.max_action_dim),
        ):
            if not dim:
                faults.append(Fault(where, f"no feature {name} is told", features))
            elif most is not None and dim > most:
                faults.append(Fault(where, f"{name} has {dim} numbers, the model takes {most} at most"))
        if self.chunk_size > self.head.horizon:
            what = f"chunk_size is {self.chunk_size}, the model's action_horizon {self.head.horizon}"
            faults.append(Fault(where, what, "lower it"))
        if self.n_action_steps > self.chunk_size:
            what = f"n_action_steps is {self.n_action_steps}, of {self.chunk_size} actions that are predicted"
            faults.append(Fault(where, what, "lower it"))
        if self.head.vl_width != self.parts.language.config.hidden_size:
            what = f"backbone_embedding_dim is {self.head.vl_width}, the vision-language model's width "
            faults.append(Fault(where, what + str(self.parts.language.config.hidden_size), "they are one width"))
        unit = self.patch * (2 if self.version == "n1.6" else self.parts.tower.merge)
        if self.frame.height % unit or self.frame.width % unit:
            what = f"image_target_size is {[self.frame.height, self.frame.width]}, no multiples of {unit} pixels"
            faults.append(Fault(where, what, f"a feature is {unit} x {unit} pixels"))
        return faults
