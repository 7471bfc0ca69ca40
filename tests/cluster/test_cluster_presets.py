"""Clusters by name."""

import math
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxsched.cluster.gpu_types import GPU_SPEEDS
from jaxsched.cluster.hardware import group_capacity, total_gpus
from jaxsched.cluster.measures import figures
from jaxsched.cluster.presets import get_cluster, get_inventory, preset_names
from jaxsched.dynamics.reference import speed_of_type
from jaxsched.errors import UserError


@pytest.mark.parametrize("kind", ["leaf-spine", "fat-tree"])
@pytest.mark.parametrize(("servers", "schedulers"), [(1, 1), (2, 2), (16, 2), (32, 2), (100, 7), (1024, 64)])
def test_sized_presets(kind, servers, schedulers):
    cluster = get_cluster(f"{kind}-{servers}")
    assert cluster.shape == (schedulers, -(-servers // schedulers), 2)
    assert total_gpus(cluster) == 8 * servers
    assert kind in "".join(preset_names())


def test_schedulers_may_be_chosen():
    assert get_cluster("leaf-spine-12", schedulers=3).shape == (3, 4, 2)


def test_philly_has_its_published_size_and_mixes_kinds_in_every_partition():
    cluster = get_cluster("philly")
    gpus = np.asarray(cluster.group_gpus).sum(-1)
    assert total_gpus(cluster) == 2490
    assert (gpus == 8).sum() == 231
    assert (gpus == 2).sum() == 321
    racks = get_inventory("philly").topology.server_rack
    servers = np.array([server.gpus for server in get_inventory("philly").servers])
    mixed = [rack for rack in range(racks.max() + 1) if len(set(servers[racks == rack])) > 1]
    assert mixed == [68]  # only the last rack
    assert ((gpus == 8).any(-1)).mean() > 0.75
    np.testing.assert_allclose(cluster.link_bytes_s[:-1], 8 * 100e9 / 8 / 4)  # 8 NICs of 100 Gbit/s, 4:1


def test_files_are_told_by_their_suffix(write):
    yaml = write("a.YML", "servers: [{count: 3, groups: [1]}]")
    csv = write("a.csv", "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n")
    assert total_gpus(get_cluster(yaml)) == 3
    assert total_gpus(get_cluster(csv)) == 2


@pytest.mark.parametrize(
    "name", ["leaf-spine", "leaf-spine-x", "torus-8", "torus4d-8", "nodes.json", "", "leaf-spine--1"]
)
def test_unknown_names_list_what_would_be_right(name):
    with pytest.raises(
        UserError, match=r"unknown cluster .*leaf-spine-N, fat-tree-N, vl2-N, bcube-N, .*philly.*\.csv.*\.yaml"
    ):
        get_cluster(name)


@pytest.mark.parametrize("name", ["leaf-spine-0", "fat-tree-100000"])
def test_sizes_out_of_range_are_refused(name):
    with pytest.raises(UserError, match=r"must have 1 to 65536"):
        get_cluster(name)


def test_a_cluster_is_a_pytree_that_jits_and_vmaps():
    cluster = get_cluster("leaf-spine-4")
    many = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), cluster)
    room = jax.jit(jax.vmap(lambda c: group_capacity(c.group_gpus, np.int32(2)).sum()))(many)
    np.testing.assert_array_equal(room, [16, 16])
    assert many.shape == (2, 2, 2)


def test_importing_the_room_stays_light():
    heavy = {"matplotlib", "flax", "jraph"}
    check = f"import sys, jaxsched.cluster.presets; print({heavy} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.strip() == "set()"


def test_speeds_of_ones_own_count_for_types_that_no_server_has(tmp_path):
    """Before: run times of a trace on V100 were converted by the built-in table alone."""
    servers = "servers: [{count: 1, groups: [4], gpu_type: A100}]\n"
    (tmp_path / "a.yaml").write_text(servers)
    (tmp_path / "b.yaml").write_text(servers + "gpu_speeds: {A100: 10, RTX-9090: 5}\n")
    (tmp_path / "own.yaml").write_text("A100: 10\nRTX-9090: 5\n")
    plain, told = get_cluster(str(tmp_path / "a.yaml")), get_cluster(str(tmp_path / "b.yaml"))
    option = get_cluster(str(tmp_path / "a.yaml"), gpu_speeds=str(tmp_path / "own.yaml"))
    assert speed_of_type(plain, "V100") == pytest.approx(1 / GPU_SPEEDS["A100"])
    for cluster in (told, option):
        assert speed_of_type(cluster, "V100") == pytest.approx(0.1)
        assert speed_of_type(cluster, "RTX-9090") == pytest.approx(0.5)


@pytest.mark.parametrize(("name", "racks"), [("leaf-spine-9", 2), ("nvl72-20", 2), ("rail-9", 2)])
def test_two_racks_of_unequal_size_have_a_bisection(name, racks):
    found = figures(get_inventory(name))
    assert found.racks == racks and math.isfinite(found.bisection_gbits_s) and found.oversubscription > 0
