"""Opening a model folder for the commands that use one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loong_vlm.inference import OpenedVisionModel


def open_model_folder(folder: str, device: str, precision: str, chat_template: str | None) -> OpenedVisionModel:
    """Open a model on the device that was asked for.

    Raises:
        UserError: the device, the precision, or what the folder holds cannot be used.
    """
    import torch

    from loong_core.device import apply_environment, select
    from loong_core.errors import UserError
    from loong_vlm.inference import open_vision_folder

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if precision not in dtypes:
        raise UserError(f"--precision is {precision!r}; it can be {' or '.join(dtypes)}")
    chosen = select(device).device
    apply_environment(chosen)
    return open_vision_folder(folder, chosen.bind(0), dtype=dtypes[precision], chat_template=chat_template)
