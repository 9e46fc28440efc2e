"""From a run file's section `fp8` to layers that compute by it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from loong_core.checkpoint.weight_map import WeightMap
from loong_core.config.sections import Fp8Section
from loong_core.device.protocol import Device
from loong_core.parallel.context import ParallelContext
from loong_core.precision.apply import AppliedPrecision, apply_precision
from loong_core.precision.settings import PrecisionSettings
from loong_core.precision.table import Table, read_table, table_for


def precision_settings(section: Fp8Section) -> PrecisionSettings:
    """The section as `apply_precision` takes it."""
    return PrecisionSettings(**section.model_dump())


def apply_section(
    section: Fp8Section,
    stages: Sequence[nn.Module],
    weight_map: WeightMap,
    num_layers: int,
    context: ParallelContext,
    device: Device,
) -> AppliedPrecision:
    """Give a built model's layers the precision of the run file; arguments as of `apply_precision`.

    Raises:
        UserError: as `apply_precision`; or the table cannot be read.
    """
    settings = precision_settings(section)
    wants_table = "adaptive" in (settings.recipe, *settings.overrides.values())
    table = _table(settings, device) if wants_table else None
    return apply_precision(stages, weight_map, num_layers, context, settings, table)


def _table(settings: PrecisionSettings, device: Device) -> Table | None:
    if settings.table is not None:
        return read_table(Path(settings.table).expanduser())
    hardware = device.hardware()
    return None if hardware is None else table_for(hardware.name)
