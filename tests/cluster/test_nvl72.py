"""Racks that are NVLink domains, under rails: sizes, closed forms, files, and what is refused."""

import dataclasses

import numpy as np
import pytest

from jaxsched.cluster.build import build, stack
from jaxsched.cluster.measures import bisection_bytes_s, link_ends
from jaxsched.cluster.presets import get_cluster, get_inventory
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topologies import TRAY, nvl72
from jaxsched.cluster.topology import leaf_spine
from jaxsched.errors import UserError

GBIT = 1e9 / 8


def test_a_preset_is_racks_of_18_trays_of_which_gangs_take_16():
    cluster = get_cluster("nvl72-72")
    assert cluster.shape == (1, 72, 1) and int(cluster.group_gpus.sum()) == 288
    np.testing.assert_array_equal(cluster.domain_block, [[16] * 4])
    np.testing.assert_array_equal(np.bincount(cluster.server_rack[0]), [18] * 4)
    assert (cluster.qpi_bytes_s == np.float32(4 * 900e9)).all() and (cluster.nic_bytes_s == 4 * 400e9 / 8).all()
    np.testing.assert_array_equal(get_cluster("nvl72-20").domain_block, [[16, 2]])  # of a rack that is not full, all


@pytest.mark.parametrize(
    ("topology", "links", "bisection"),
    [
        (nvl72(72, nic_gbits_s=24.0), 2 * 4 * 4, 36 * 24.0),
        (nvl72(72, nic_gbits_s=24.0, rails=3, oversubscription=2.0), 2 * 4 * 3, 36 * 12.0),
        (nvl72(36, domains=1, servers_per_unit=9, nic_gbits_s=24.0), 2 * 3 * 4, 18 * 24.0),
    ],
)
def test_links_and_bisection_are_those_of_the_closed_form(topology, links, bisection):
    assert len(topology.link_names) == links
    assert bisection_bytes_s(topology) == pytest.approx(bisection * GBIT)
    tails, heads = link_ends(topology).T
    for target in (1, len(topology.rack_names) - 1):
        shares = topology.route(0, target)
        assert sum(share for link, share in shares.items() if tails[link] == 0) == pytest.approx(1)
        assert sum(share for link, share in shares.items() if heads[link] == target) == pytest.approx(1)


FILE = """
servers:
  - {count: 36, groups: [4], gpu_type: GB200, pcie_gbytes_s: 3600, nvlink_gbytes_s: 3600, nic_gbits_s: 1600}
  - {count: 10, groups: [8], gpu_type: H100, pcie_gbytes_s: 450, nic_gbits_s: 3200}
topology: {kind: nvl72, domains: 2, used: 17}
"""


def test_nvl72_and_nvl8_stand_in_one_file(tmp_path):
    (tmp_path / "mix.yaml").write_text(FILE)
    cluster = get_cluster(tmp_path / "mix.yaml")
    np.testing.assert_array_equal(cluster.domain_block, [[17, 17, 0, 0]])
    np.testing.assert_array_equal(np.bincount(cluster.server_rack[0]), [18, 18, 8, 2])
    both = stack([cluster, get_cluster("leaf-spine-16", schedulers=1)])
    assert both.domain_block.shape == (2, 1, 4) and not both.domain_block[1].any()


def test_any_network_has_domains_where_all_servers_of_a_rack_have_nvlink():
    cluster = build([TRAY] * 8 + [Server()] * 4, leaf_spine(12, 4), 1)
    np.testing.assert_array_equal(cluster.domain_block, [[4, 4, 0]])
    assert get_cluster("leaf-spine-16").domain_block.size == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("count: 36", "count: 30"), "mix.yaml: topology: rack1 is an NVLink domain, but not all its servers have nvl"),
        (("domains: 2", "domains: 3"), "rack2 is an NVLink domain, but not all its servers"),
        (("domains: 2", "domains: 4"), "domains is 4; it must be a whole number from 0 to 3"),
        (("used: 17", "used: 19"), "used is 19; it must be a whole number from 1 to 18"),
        (("groups: [4], ", "groups: [2, 2], "), r"groups is \(2, 2\); with nvlink_gbytes_s it must be one group"),
        (("nvlink_gbytes_s: 3600", "nvlink_gbytes_s: 0"), "nvlink_gbytes_s"),
        (("topology", "schedulers: 4\ntopology"), "schedulers: 4 cut rack0, an NVLink domain, into several partitions"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, change, says):
    (tmp_path / "mix.yaml").write_text(FILE.replace(change[0], change[1], 1))
    with pytest.raises(UserError, match=says) as error:
        get_inventory(str(tmp_path / "mix.yaml"))
    assert "\n" not in str(error.value)


def test_partitions_that_cut_a_domain_are_refused_when_they_are_asked_for():
    with pytest.raises(UserError, match="schedulers: 3 cut rack1"):
        get_cluster("nvl72-72", schedulers=3)
    assert get_cluster("nvl72-72", schedulers=4).domain_block.tolist() == [[16]] * 4
    with pytest.raises(UserError, match="rack0 is an NVLink domain, but not"):
        build([dataclasses.replace(TRAY, nvlink_gbytes_s=None)] * 18, nvl72(18), 1)
