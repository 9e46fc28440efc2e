"""What a family of policies tells the rest of the package (entry-point group `loong.policies`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from loong_core.checkpoint.pieces import Piece
from loong_core.checkpoint.weight_map import WeightMap
from loong_core.engine.base import ForwardStep
from loong_core.errors import Fault
from loong_core.parallel.context import ParallelContext
from loong_vla.data.augmentation import AugmentationSection
from loong_vla.data.samples import RobotSample
from loong_vla.data.statistics import FeatureStatistics

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PolicyConfig(Protocol):
    """What is asked of any policy's configuration."""

    @property
    def kind(self) -> str:
        """Which policy of its family it is."""
        ...

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the pictures it looks at, in order."""
        ...

    @property
    def state_dim(self) -> int:
        """Numbers in a robot's state."""
        ...

    @property
    def action_dim(self) -> int:
        """Numbers in an action."""
        ...

    @property
    def chunk_size(self) -> int:
        """Actions predicted at once."""
        ...

    @property
    def n_action_steps(self) -> int:
        """How many of these are carried out before it looks again."""
        ...

    @property
    def max_action_dim(self) -> int:
        """Numbers that an action may have at most."""
        ...

    @property
    def widest_state(self) -> int | None:
        """Numbers that a state may have at most; None: any number."""
        ...

    @property
    def num_layers(self) -> int:
        """Layers that names of its tensors count."""
        ...

    @property
    def vocab_size(self) -> int:
        """Tokens that it knows."""
        ...

    @property
    def clips(self) -> bool:
        """Whether normalised numbers are kept within [-1, 1]."""
        ...

    @property
    def prompt_length(self) -> int:
        """Tokens of a usual prompt, to reckon with before any is seen."""
        ...

    @property
    def home_embodiment(self) -> str:
        """Whose recordings are meant where a run file does not say."""
        ...

    def normalization_of(self, feature: str) -> str:
        """How a feature, `STATE` or `ACTION`, is normalised."""
        ...

    def embodiment_faults(self, names: Mapping[str, str]) -> list[Fault]:
        """What is wrong with embodiments, given by the place in the run file that names them."""
        ...

    def for_embodiments(self, names: Sequence[str]) -> Self:
        """The same policy, holding what these embodiments need."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Its `config.json`."""
        ...

    def sizes_json(self) -> dict[str, Any] | None:
        """Its `sizes.json`; None where `config.json` says it all."""
        ...


class PolicyBatch(Protocol):
    """A microbatch."""

    @property
    def noise(self) -> Tensor:
        """`[batch, actions, max_action_dim]`, what sampling begins with."""
        ...

    def with_noise(self, noise: Tensor) -> Self:
        """The same with other noise."""
        ...

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The same on `device`."""
        ...


class PolicyCollator(Protocol):
    """Makes microbatches."""

    def __call__(self, samples: Sequence[RobotSample]) -> Any:
        """Of training samples."""
        ...

    def observed(
        self,
        pictures: Sequence[dict[str, NDArray[np.uint8]]],
        states: Sequence[NDArray[np.float32]],
        tasks: Sequence[str],
        embodiments: Sequence[str] | None = None,
    ) -> Any:
        """Of what is seen, with nothing done yet; by default everybody is the policy's first embodiment."""
        ...


@dataclass(frozen=True)
class StoredNames:
    """What a folder calls a policy's tensors.

    Attributes:
        weight_map: the policy's parameters in terms of them.
        harmless: names of tensors that may be there without a use.
        theirs: from the name under which we write a tensor to the folder's.
    """

    weight_map: WeightMap
    harmless: tuple[str, ...]
    theirs: Callable[[str], str]


@dataclass(frozen=True)
class PolicyFamily:
    """Policies of like parts.

    Attributes:
        name: what the family is called.
        kinds: values of `type` (lerobot's folders) or `model_type` (others) in a `config.json` that belong to it.
        read_config: (folder, its `config.json`) to a policy; raises `UserError` with all that cannot be served.
        overridden: (a policy, where from, keys of `config.json` to replace) to another; raises likewise.
        config_faults: what a policy still lacks before it can be trained or used, and where it says so.
        build: a policy's module on the current default device, weights not drawn. It maps a prepared batch to the
            velocity, and `sample(batch, steps)` gives actions.
        initialise: draws weights: (module, policy, context, seed).
        weight_map: a policy's parameters by the names that are written.
        stored: (policy, names in a folder) to what the folder calls them.
        handed_on: boxes of tensors that files hold and nothing here is trained of, by the names that are written.
        collator: (policy, tokenizer, seed, changes of pictures or None) to what makes its microbatches.
        tokenizer_faults: what keeps a tokenizer and a policy apart.
        loss: the forward step of training.
        prepared: (batch on the device, policy) to a batch with pictures as the policy sees them.
        written_config: (policy, dtype's name) to the `config.json` of a folder.
        write_processors: (folder, policy, statistics by feature, where the policy is to be) writes lerobot's processors
            and what they read.
        read_statistics: the statistics that a folder's processors hold, by feature; empty where there are none.
        flops: (module, cameras, tokens of a prompt) to the floating-point operations of training on one sample.
        takes_adapters: whether its vision-language model is made of layers that low-rank adapters can be put on.
        finished: what is done to a module once it is known which of its parameters are trained.
    """

    name: str
    kinds: tuple[str, ...]
    read_config: Callable[[Path, Mapping[str, Any]], Any]
    overridden: Callable[[Any, Path, Mapping[str, Any]], Any]
    config_faults: Callable[[Any, str], list[Fault]]
    build: Callable[[Any], nn.Module]
    initialise: Callable[[nn.Module, Any, ParallelContext, int], None]
    weight_map: Callable[[Any], WeightMap]
    stored: Callable[[Any, Collection[str]], StoredNames]
    handed_on: Callable[[Any], list[Piece]]
    collator: Callable[[Any, PreTrainedTokenizerBase, int, AugmentationSection | None], PolicyCollator]
    tokenizer_faults: Callable[[PreTrainedTokenizerBase, Any], list[Fault]]
    loss: ForwardStep
    prepared: Callable[[Any, Any], Any]
    written_config: Callable[[Any, str], dict[str, Any]]
    write_processors: Callable[[Path, Any, FeatureStatistics, str], None]
    read_statistics: Callable[[Path], FeatureStatistics]
    flops: Callable[[Any, int, int], float]
    takes_adapters: bool = False
    finished: Callable[[nn.Module], None] = lambda module: None
