"""`loong ops`: each op's implementations, which of them a device gets, and why not the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from loong_core.cli.explain import explain as explain_model
from loong_core.cli.tables import add_row, console, table

if TYPE_CHECKING:
    from loong_kernels.registry import Standing


def ops(
    device: Annotated[
        str | None,
        typer.Option("--device", help="A device's name; with --explain also an accelerator's that is not here (h200)."),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option("--explain", help="A named model: tell what serves its ops, and the precision of its products."),
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="With --explain: tokens of a microbatch.")] = 8192,
) -> None:
    """List ops with their implementations: what serves on the device, and why not the others."""
    if explain is not None:
        explain_model(explain, device, tokens)
        return
    import loong_kernels  # defines the ops
    from loong_core.device import select
    from loong_kernels import registry

    del loong_kernels
    chosen = select(device)
    out = console()
    made = table(f"Ops on {chosen.device.name}", "op", "implementation", "state", "why", "origin")
    for op in registry.ops():
        for index, (standing, state, why) in enumerate(
            verdicts(registry.REGISTRY.standing(op.name, chosen.device.torch_type))
        ):
            one = standing.implementation
            add_row(made, op.name if index == 0 else "", one.name, state, why, one.origin)
    out.print(made)
    out.print("A shape that what serves does not support goes to the next; a run file's `kernels:` names another.")
    for plugin in registry.plugins():
        if plugin.error is not None:
            out.print(
                f"plug-in {plugin.name} of {plugin.origin} failed: {plugin.error}", style="bold red", markup=False
            )


def verdicts(standings: list[Standing]) -> list[tuple[Standing, str, str]]:
    """Each implementation's state, and why, in the order in which they are asked.

    The first that may serve and needs no asking `serves`; others are `next`, `by name`, or `unavailable`.
    """
    told: list[tuple[Standing, str, str]] = []
    served = False
    for standing in standings:
        if standing.reason is not None:
            told.append((standing, "unavailable", standing.reason))
        elif standing.implementation.priority is None:
            told.append((standing, "by name", "serves only where a run file names it"))
        elif served:
            told.append((standing, "next", "serves shapes that those above do not support"))
        else:
            served = True
            told.append((standing, "serves", "first choice that this machine has"))
    return told
