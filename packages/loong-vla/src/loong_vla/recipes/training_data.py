"""From the `data` section to sources of samples: datasets opened, cameras matched, statistics checked and pooled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from loong_core.config.files import missing_file
from loong_core.errors import ConfigError, Fault, UserError
from loong_vla.data.lerobot_recordings import LerobotRecordings
from loong_vla.data.recordings import ACTION, STATE, Recordings, camera_map
from loong_vla.data.samples import SampleSource
from loong_vla.data.statistics import (
    FeatureStatistics,
    Normaliser,
    Statistics,
    pool_statistics,
    read_statistics,
    statistics_faults,
    widened,
)
from loong_vla.families.family import PolicyConfig
from loong_vla.recipes.training_config import DataSection

FEATURES = {STATE: "STATE", ACTION: "ACTION"}


@dataclass(frozen=True)
class RobotData:
    """Opened datasets.

    Attributes:
        train: sources of training samples.
        held_out: sources of held-out ones, empty for none.
        weights: proportions of the training sources, None for their sizes.
        statistics: by embodiment and feature.
        warnings: what a user should know before the run.
    """

    train: list[SampleSource]
    held_out: list[SampleSource]
    weights: list[float] | None
    statistics: dict[str, FeatureStatistics]
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Opened:
    """A dataset: where it is named, whose it is, and the policy's camera to its feature."""

    path: str
    embodiment: str
    recordings: Recordings
    cameras: dict[str, str]


def open_data(
    data: DataSection, policy: PolicyConfig, known: dict[str, FeatureStatistics], *, check_videos: bool = True
) -> RobotData:
    """Open and check every dataset.

    Args:
        data: the run file's section.
        policy: what is trained.
        known: the policy folder's statistics, for `data.statistics: model`.
        check_videos: whether every video's header is read.

    Raises:
        ConfigError: with every fault of the section and the datasets.
    """
    faults = section_faults(data)
    opened: list[_Opened] = []
    named = {
        f"data.train.{number}.embodiment": each.embodiment or policy.home_embodiment
        for number, each in enumerate(data.train)
    }
    faults += policy.embodiment_faults(named)
    reader = LerobotRecordings if data.reader == "lerobot" else Recordings
    cache = data.picture_cache_mb * 10**6 // max(1, len(data.train))
    for number, source in enumerate(data.train):
        where = f"data.train.{number}"
        if (fault := missing_file(f"{where}.path", source.path)) is not None:
            faults.append(fault)
            continue
        recordings = _told(faults, where, lambda s=source: reader(s.path, cache_bytes=cache))
        if recordings is None:
            continue
        faults += _width_faults(where, recordings, policy)
        cameras = _told(faults, where, lambda r=recordings, s=source: camera_map(r, policy.cameras, s.cameras))
        if check_videos:
            faults += recordings.video_faults()
        if cameras is not None:
            opened.append(_Opened(source.path, source.embodiment or policy.home_embodiment, recordings, cameras))
    warnings: list[str] = []
    absent = [camera for camera in policy.cameras if not any(camera in each.cameras for each in opened)]
    if absent and opened and data.missing_cameras == "stop":
        what = f"no dataset has the policy's camera {', '.join(absent)}"
        faults.append(
            Fault("data.train", what, "name it in cameras, or set data.missing_cameras=leave_out to train without")
        )
    elif absent and opened:
        warnings.append(f"no dataset has {', '.join(absent)}: the policy is trained without")
    statistics = _statistics(data, policy, opened, known, faults)
    if faults:
        raise ConfigError(faults)
    train: list[SampleSource] = []
    held_out: list[SampleSource] = []
    for number, source in enumerate(opened):
        recordings = source.recordings
        normalisers = {
            feature: Normaliser.of(
                statistics[source.embodiment][feature],
                policy.normalization_of(kind),
                recordings.metadata.width(feature),
                clips=policy.clips,
            )
            for feature, kind in FEATURES.items()
        }
        times = data.action_times or [step / recordings.metadata.fps for step in range(policy.chunk_size)]
        offsets = _told(faults, f"data.train.{number}", lambda r=recordings, t=times: r.offsets(t, "data.action_times"))
        if offsets is None:
            continue
        lengths = recordings.metadata.lengths
        if (short := int((lengths <= int(offsets.max())).sum())) > 0:
            warnings.append(
                f"{source.path}: {short} of {len(lengths)} episodes are shorter than the horizon of "
                f"{int(offsets.max()) + 1} frames; actions beyond their end are not trained on"
            )
        kept = len(lengths) - int(data.validation_fraction * len(lengths))
        bound = int(lengths[:kept].sum())
        for sources, frames in ((train, np.arange(bound)), (held_out, np.arange(bound, len(recordings)))):
            if len(frames):
                sources.append(
                    SampleSource(recordings, source.cameras, normalisers, offsets, source.embodiment, frames)
                )
    if faults:
        raise ConfigError(faults)
    weights = [source.weight for source in data.train if source.weight is not None] or None
    return RobotData(train, held_out, weights, statistics, warnings)


def section_faults(data: DataSection) -> list[Fault]:
    """What is wrong with the section by itself."""
    faults = []
    if not data.train:
        faults.append(Fault("data.train", "names no dataset", "give the folder of a LeRobot dataset"))
    weighted = [source.weight is not None for source in data.train]
    if any(weighted) and not all(weighted):
        faults.append(
            Fault("data.train", "some datasets have a weight and others none", "give all of them one, or none")
        )
    return faults


def _width_faults(where: str, recordings: Recordings, policy: PolicyConfig) -> list[Fault]:
    faults = []
    action, state = (recordings.metadata.width(feature) for feature in (ACTION, STATE))
    if action > policy.max_action_dim:
        what = f"{recordings.root} has actions of {action} numbers, the policy takes {policy.max_action_dim} at most"
        faults.append(Fault(where, what, "raise max_action_dim of the policy"))
    if policy.widest_state is not None and state > policy.widest_state:
        what = f"{recordings.root} has states of {state} numbers, the policy takes {policy.widest_state} at most"
        faults.append(Fault(where, what, "raise max_state_dim of the policy"))
    return faults


def _statistics(
    data: DataSection,
    policy: PolicyConfig,
    opened: list[_Opened],
    known: dict[str, FeatureStatistics],
    faults: list[Fault],
) -> dict[str, FeatureStatistics]:
    """Statistics of each embodiment; what keeps them from being used is added to `faults`."""
    parts: dict[str, dict[str, list[Statistics]]] = {}
    for source in opened:
        recordings = source.recordings
        for feature, kind in FEATURES.items():
            width = recordings.metadata.width(feature)
            mode = policy.normalization_of(kind)
            if data.statistics == "model":
                entry = known.get(source.embodiment, {}).get(feature)
                if entry is None:
                    what = f"the policy's folder has no statistics of {feature} for embodiment {source.embodiment!r}"
                    faults.append(Fault("data.statistics", what, "set it to data"))
                    continue
            else:
                entry = recordings.metadata.statistics.get(feature)
            if found := statistics_faults(str(recordings.root), feature, entry, mode, width, data.constant_dimensions):
                faults.extend(found)
                continue
            of_feature = parts.setdefault(source.embodiment, {}).setdefault(feature, [])
            of_feature.append(read_statistics(entry or {}))
            if of_feature[-1].keys() & {"mean"} and of_feature[-1]["mean"].shape != of_feature[0]["mean"].shape:
                what = f"datasets of embodiment {source.embodiment!r} have {feature} of unlike widths"
                faults.append(Fault("data.train", what, "give them embodiments of their own"))
                of_feature.pop()
    return {
        embodiment: {
            feature: widened(pool_statistics(entries), policy.normalization_of(FEATURES[feature]))
            for feature, entries in features.items()
        }
        for embodiment, features in parts.items()
    }


def _told[Value](faults: list[Fault], where: str, action: Callable[[], Value]) -> Value | None:
    """The action's result, or None and its error among the faults."""
    try:
        return action()
    except ConfigError as error:
        faults += error.faults
    except UserError as error:
        faults.append(Fault(where, str(error)))
    return None


def data_size(data: RobotData) -> str:
    """The opened data in a line."""
    frames = sum(len(source) for source in data.train)
    episodes = sum(len(source.recordings.metadata.lengths) for source in data.train)
    return f"{frames:,} samples in {episodes:,} episodes of {len(data.train)} dataset" + ("s" * (len(data.train) > 1))
