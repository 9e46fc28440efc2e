"""`loong-vla serve POLICY`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    policy: Annotated[
        Path, typer.Argument(help="A pretrained_model folder, or the run folder it is in.", show_default=False)
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any that is free.")] = 8000,
    device: Annotated[str, typer.Option(help="auto, or a device that `loong devices` lists.")] = "auto",
    embodiment: Annotated[str | None, typer.Option(help="Of those the policy knows; the first by default.")] = None,
) -> None:
    """Serve a policy over the websocket protocol that openpi's clients speak, until interrupted."""
    from loong_core.errors import UserError

    try:
        from loong_vla.serve.server import PolicyServer
    except ImportError as error:
        raise UserError(f"serving needs {error.name}: pip install 'loong-vla[serve]'") from error
    from loong_vla.policy_runner import PolicyRunner

    runner = PolicyRunner(policy, device=device, embodiment=embodiment)
    try:
        server = PolicyServer(runner, host, port)
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    typer.echo(f"{runner.config.kind} on ws://{host}:{server.port}, {runner.device}; interrupt to stop")
    try:
        server.run()
    except KeyboardInterrupt:
        server.close()
