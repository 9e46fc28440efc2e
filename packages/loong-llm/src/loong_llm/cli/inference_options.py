"""Options of the commands that use a model folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from loong_llm.inference import OpenedModel

Folder = Annotated[
    str, typer.Argument(metavar="DIR", help="A Hugging Face model folder, or one of PEFT's.", show_default=False)
]
Adapter = Annotated[str | None, typer.Option(help="A folder of PEFT's to put on the model.")]
Tokenizer = Annotated[str | None, typer.Option(help="`bytes` or another folder; the model's own by default.")]
DeviceName = Annotated[str, typer.Option(help="A device that `loong devices` lists.")]
Precision = Annotated[str, typer.Option(help="fp32 or bf16.")]


def open_folder(
    folder: str, tokenizer: str | None, device: str, precision: str, adapter: str | None = None
) -> OpenedModel:
    """Open a model on the device that was asked for.

    Raises:
        UserError: the device, the precision, or what the folder holds cannot be used.
    """
    import torch

    from loong_core.device import apply_environment, select
    from loong_core.errors import UserError
    from loong_llm.inference import open_for_inference

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if precision not in dtypes:
        raise UserError(f"--precision is {precision!r}; it can be {' or '.join(dtypes)}")
    chosen = select(device).device
    apply_environment(chosen)
    return open_for_inference(folder, chosen.bind(0), dtype=dtypes[precision], tokenizer=tokenizer, adapter=adapter)
