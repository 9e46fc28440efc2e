"""Accelerators by name, and clusters of them, as a plan sees them.

Peaks and bandwidths are the data sheets'; what is reached of them is in `loong_core.plan.rates`. A machine or chip that
is not listed is described in a YAML file with the attributes of `Accelerator`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from loong_core.errors import ConfigError, Fault, UserError

GIB = 2**30


@dataclass(frozen=True)
class Link:
    """What connects accelerators.

    Attributes:
        bandwidth: bytes a second that each accelerator sends while it receives as much.
        latency: seconds until the first byte of a message arrives, software included.
    """

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Accelerator:
    """One kind of accelerator, in machines of one kind.

    Attributes:
        name: what it is called here.
        memory: bytes that the runtime says it has.
        bf16: floating-point operations a second of dense bfloat16 matrix products.
        fp32: the same of float32 (without TF32).
        memory_bandwidth: bytes a second, read and written together.
        per_node: how many a machine usually has.
        inside: the link between those of one machine.
        between: the link between machines, each accelerator's share of it.
    """

    name: str
    memory: float
    bf16: float
    fp32: float
    memory_bandwidth: float
    per_node: int
    inside: Link
    between: Link


def _gpu(
    name: str, gib: float, bf16: float, fp32: float, terabytes: float, inside: float, between: float
) -> Accelerator:
    """Rates in 1e12 a second, links in 1e9 bytes a second."""
    return Accelerator(
        name,
        memory=gib * GIB,
        bf16=bf16 * 1e12,
        fp32=fp32 * 1e12,
        memory_bandwidth=terabytes * 1e12,
        per_node=8,
        inside=Link(inside * 1e9, 4e-6),
        between=Link(between * 1e9, 12e-6),
    )


ACCELERATORS: dict[str, Accelerator] = {
    each.name: each
    for each in (
        _gpu("h200", 139.8, 989, 67, 4.8, 450, 50),
        _gpu("h100", 79.1, 989, 67, 3.35, 450, 50),
        _gpu("h800", 79.1, 989, 67, 3.35, 200, 50),
        _gpu("h20", 95.1, 148, 44, 4.0, 450, 50),
        _gpu("b200", 178.3, 2250, 75, 7.7, 900, 50),
        _gpu("a100", 79.2, 312, 19.5, 2.04, 300, 25),
        _gpu("a800", 79.2, 312, 19.5, 2.04, 200, 25),
        _gpu("l40s", 44.4, 362, 91.6, 0.864, 26, 12.5),
    )
}
"""Machines of eight: NVLink inside (PCIe for l40s), InfiniBand of 400 Gbit/s (a100, a800: 200, l40s: 100) between."""


@dataclass(frozen=True)
class Cluster:
    """Accelerators of one kind in equal machines.

    Attributes:
        accelerator: the kind.
        size: how many there are.
        per_node: how many share a machine.
    """

    accelerator: Accelerator
    size: int
    per_node: int

    @property
    def nodes(self) -> int:
        """How many machines."""
        return -(-self.size // self.per_node)


def make_cluster(accelerator: Accelerator, gpus: int, nodes: int | None = None) -> Cluster:
    """`gpus` accelerators on `nodes` machines; on as few of the usual size as hold them where `nodes` is None.

    Raises:
        UserError: they do not divide evenly among the machines.
    """
    if gpus < 1:
        raise UserError(f"--gpus is {gpus}; a plan needs at least 1")
    if nodes is None:
        if gpus > accelerator.per_node and gpus % accelerator.per_node:
            lower = gpus // accelerator.per_node * accelerator.per_node
            raise UserError(
                f"{gpus} {accelerator.name} do not fill machines of {accelerator.per_node}; plan "
                f"{lower} or {lower + accelerator.per_node}, or say by --nodes how many machines share them"
            )
        return Cluster(accelerator, gpus, min(gpus, accelerator.per_node))
    if nodes < 1 or gpus % nodes:
        even = max(1, round(gpus / max(nodes, 1))) * max(nodes, 1)
        raise UserError(f"--gpus {gpus} do not divide evenly among --nodes {nodes}; the nearest that do are {even}")
    return Cluster(accelerator, gpus, gpus // nodes)


def find_accelerator(name: str) -> Accelerator:
    """The accelerator of that name, or the one that a YAML file describes.

    Raises:
        UserError: there is none, with the nearest names; or the file has faults.
    """
    if (known := ACCELERATORS.get(name.lower())) is not None:
        return known
    if Path(name).suffix in (".yaml", ".yml"):
        return _read(Path(name))
    near = get_close_matches(name.lower(), ACCELERATORS, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UserError(
        f"--device: no accelerator is called {name!r}{hint} (known: {', '.join(ACCELERATORS)}; or name a .yaml file "
        f"that describes one by {', '.join(field.name for field in fields(Accelerator))})"
    )


def _read(path: Path) -> Accelerator:
    """An accelerator from a file; links are mappings of bandwidth and latency."""
    if not path.exists():
        raise UserError(f"--device: there is no file {path}")
    try:
        values: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"--device: {path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"--device: {path} is not a mapping of keys to values")
    faults: list[Fault] = []
    read: dict[str, Any] = {}
    links = {name: values.pop(name, None) for name in ("inside", "between")}
    _take(str(path), Accelerator, values, read, faults, skip=tuple(links))
    for name, link in links.items():
        inner: dict[str, Any] = {}
        _take(f"{path}: {name}", Link, link if isinstance(link, dict) else {}, inner, faults)
        if len(inner) == len(fields(Link)):
            read[name] = Link(**inner)
    if faults:
        raise ConfigError(faults)
    return Accelerator(**read)


def _take(
    where: str,
    kind: type,
    values: dict[str, Any],
    read: dict[str, Any],
    faults: list[Fault],
    skip: tuple[str, ...] = (),
) -> None:
    """Move what `kind` wants from `values` to `read`: text for `name`, positive numbers for the rest."""
    wanted = [field.name for field in fields(kind) if field.name not in skip]
    for key in values.keys() - set(wanted):
        near = get_close_matches(str(key), wanted, n=1)
        faults.append(
            Fault(where, f"{key} is not one of its keys", f"did you mean {near[0]}?" if near else "remove it")
        )
    for key in wanted:
        value: Any = values.get(key)
        if key == "name":
            read[key] = str(value or Path(where).stem)
            continue
        try:
            number = float(value)  # PyYAML reads 4.8e12 as text
        except (TypeError, ValueError):
            number = 0.0
        if number <= 0:
            faults.append(Fault(where, f"{key} is {value!r}", "give a number above 0"))
        read[key] = int(number) if key == "per_node" else number
