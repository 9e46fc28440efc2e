"""Collectives run at the links that their ranks have, inside a machine or between machines."""

import pytest
from plan_toys import cluster

from loong_core.parallel.layout import Layout
from loong_core.plan.communication import Group, Groups, Network
from loong_core.plan.rates import measured_rates

GIGABYTE = 1e9


@pytest.fixture
def network():
    return Network(cluster(64), measured_rates())


def test_neighbours_share_a_machine_and_far_ranks_do_not(network):
    groups = Groups.of(Layout(tensor=4, pipeline=2, expert=8), network)
    assert groups.tensor == Group(4, 4)
    assert groups.data == Group(8, 2)  # every fourth rank
    assert groups.expert == Group(8, 8)
    assert groups.expert_data == Group(4, 1)
    assert groups.expert_data.nodes == 4
    assert groups.pipeline_stride == 32


def test_a_group_across_machines_is_as_fast_as_the_links_of_its_members(network):
    inside, two_each, one_each = (network.gather(GIGABYTE, Group(8, near)) for near in (8, 2, 1))
    assert inside < two_each < one_each
    assert one_each == pytest.approx(2 * two_each, rel=0.02)


def test_one_rank_communicates_with_nobody(network):
    alone = Group(1, 1)
    assert network.gather(GIGABYTE, alone) == network.reduce(GIGABYTE, alone) == network.exchange(GIGABYTE, alone) == 0


def test_reducing_for_all_is_scattering_and_gathering(network):
    group = Group(8, 8)
    assert network.reduce(GIGABYTE, group) == 2 * network.gather(GIGABYTE, group)


def test_an_exchange_over_machines_waits_for_what_leaves_them(network):
    accelerator, reached = network.cluster.accelerator, network.rates.network
    seconds = network.exchange(GIGABYTE, Group(64, 8))
    assert seconds == pytest.approx(GIGABYTE * 56 / 64 / (accelerator.between.bandwidth * reached), rel=0.02)


def test_small_messages_take_the_latency(network):
    assert network.send(8, 1) == pytest.approx(network.cluster.accelerator.inside.latency, rel=0.01)
    assert network.send(8, 8) == pytest.approx(network.cluster.accelerator.between.latency, rel=0.01)
    assert network.pass_on(8, Group(4, 4)) < network.pass_on(8, Group(4, 2))
