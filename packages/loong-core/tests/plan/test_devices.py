"""Accelerators by name or file, and how they fill machines."""

import pytest

from loong_core.errors import UserError
from loong_core.plan.devices import ACCELERATORS, find_accelerator, make_cluster
from loong_core.plan.rates import dump_rates, measured_rates, parse_rates

DESCRIBED = """
name: wide
memory: 1.0e12
bf16: 2e15
fp32: 1e14
memory_bandwidth: 8e12
per_node: 4
inside: {bandwidth: 9e11, latency: 3e-6}
between: {bandwidth: 1e11, latency: 1e-5}
"""


def test_names_are_found_in_any_case():
    assert find_accelerator("H200") is ACCELERATORS["h200"]


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(UserError, match=r"no accelerator is called 'h20p'; did you mean h20\?"):
        find_accelerator("h20p")


def test_a_file_describes_another_accelerator(tmp_path):
    path = tmp_path / "wide.yaml"
    path.write_text(DESCRIBED)
    found = find_accelerator(str(path))
    assert (found.name, found.memory, found.per_node, found.inside.bandwidth) == ("wide", 1e12, 4, 9e11)


def test_every_fault_of_a_file_is_told(tmp_path):
    path = tmp_path / "wide.yaml"
    path.write_text(DESCRIBED.replace("per_node: 4", "per_nod: 4").replace("latency: 3e-6", "latency: -1"))
    with pytest.raises(UserError) as refused:
        find_accelerator(str(path))
    words = str(refused.value)
    assert "per_nod is not one of its keys (did you mean per_node?)" in words
    assert "per_node is None (give a number above 0)" in words
    assert "latency is -1" in words


def test_machines_are_filled():
    cluster = make_cluster(ACCELERATORS["h200"], 64)
    assert (cluster.nodes, cluster.per_node) == (8, 8)
    assert make_cluster(ACCELERATORS["h200"], 4).nodes == 1
    assert make_cluster(ACCELERATORS["h200"], 64, 16).per_node == 4


@pytest.mark.parametrize(
    ("gpus", "nodes", "words"),
    [
        (12, None, "12 h200 do not fill machines of 8; plan 8 or 16"),
        (64, 6, "--gpus 64 do not divide evenly among --nodes 6; the nearest that do are 66"),
        (0, None, "--gpus is 0"),
    ],
)
def test_accelerators_that_do_not_divide_among_machines_are_refused(gpus, nodes, words):
    with pytest.raises(UserError, match=words):
        make_cluster(ACCELERATORS["h200"], gpus, nodes)


def test_rates_survive_their_file():
    import json

    rates = measured_rates()
    assert parse_rates(json.loads(dump_rates(rates, {}))["rates"]) == rates
    with pytest.raises(ValueError, match="missing or unknown: speed"):
        parse_rates({**json.loads(dump_rates(rates, {}))["rates"], "speed": 1})
