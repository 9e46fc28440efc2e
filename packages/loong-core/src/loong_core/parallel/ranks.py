"""Which rank this process is, and joining the other ranks.

Whoever starts ranks (`loong_core.parallel.launch`, torchrun, a cluster's scripts) tells each by torchrun's environment
variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Where they are missing, those of a
SLURM step (`srun`) serve. Without either a process is the only rank. Torch is imported only when ranks are joined.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from loong_core.errors import UserError
from loong_core.parallel.slurm import torchrun_variables

if TYPE_CHECKING:
    import torch

    from loong_core.device.protocol import Device

DEFAULT_TIMEOUT = timedelta(minutes=10)
"""How long a collective waits for ranks that do not come."""


@dataclass(frozen=True)
class RankPlace:
    """This process among the ranks of the world and of its machine; `started` by a launcher, or the only rank."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    started: bool = False

    @staticmethod
    def from_env(environ: Mapping[str, str] | None = None) -> RankPlace:
        """Read torchrun's variables, or SLURM's.

        Raises:
            UserError: some are set and others are not, or one is no number.
        """
        environ = os.environ if environ is None else environ
        if "RANK" not in environ:
            environ = {**environ, **torchrun_variables(environ)}
        if "RANK" not in environ:
            return RankPlace()
        missing = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in environ]
        if missing:
            raise UserError(
                f"environment: RANK={environ['RANK']} says that a launcher started this process, but "
                f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set; start ranks with --nproc or "
                "torchrun, or unset RANK"
            )
        numbers = {}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            text = environ.get(name) or environ["RANK" if name == "LOCAL_RANK" else "WORLD_SIZE"]
            try:
                numbers[name.lower()] = int(text)
            except ValueError:
                raise UserError(f"environment: {name}={text!r} is not a number") from None
        return RankPlace(started=True, **numbers)


def initialise_from_env(device: Device, *, timeout: timedelta = DEFAULT_TIMEOUT) -> tuple[RankPlace, torch.device]:
    """Bind this process to its device and join the other ranks in torch's default process group.

    The default group carries host tensors too, whatever the device. A process that no launcher started becomes the
    only rank of a group of one, without a port or a file.

    Args:
        device: from `loong_core.device.select`.
        timeout: how long a collective waits for ranks that do not come.

    Returns:
        this process's place, and the device its tensors live on.
    """
    import torch.distributed as dist

    sys.dont_write_bytecode = False  # else every import by every rank compiles hundreds of files anew
    place = RankPlace.from_env()
    if place.started and "RANK" not in os.environ:
        os.environ.update(torchrun_variables(os.environ))  # torch and megatron read them too
    bound = device.bind(place.local_rank)
    backend = device.communication_backend
    if device.torch_type != "cpu":
        backend = f"cpu:gloo,{device.torch_type}:{backend}"
    if place.started:
        # torchrun's agent keeps one store for all restarts, and ranks must not find the addresses of those before them.
        found = dist.rendezvous("env://", place.rank, place.world_size, timeout=timeout)  # pyright: ignore[reportPrivateImportUsage]
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"restart-{restart}", next(found)[0])  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(backend, timeout=timeout, rank=place.rank, world_size=place.world_size, store=store)
    else:
        # megatron's HyperCommGrid reads WORLD_SIZE before it asks torch.distributed; here both must say 1.
        os.environ.setdefault("WORLD_SIZE", "1")
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(backend, timeout=timeout, rank=0, world_size=1, store=store)
    return place, bound


def leave() -> None:
    """Leave the default process group, if this process is in one."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
