"""Readers: real inventories, the native file, and one test per kind of mistake."""

import numpy as np
import pytest

from jaxsched.cluster.hardware import reference_type, total_gpus
from jaxsched.cluster.inventory import read_csv, read_host_map, read_node_list
from jaxsched.cluster.presets import read_cluster_file
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topologies import torus2d
from jaxsched.errors import UserError

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,96000,393216,8,G2\nn2,32000,1,0,\n"
HOSTS = "ip,DSW,PSW,ASW\na,G6,P10,S2\nb,G6,P8,S10\nc,G6,P8,S2\nd,G6,P8,S2\n"

NAMED = "{servers: [{count: 6, groups: [4, 4]}], partitions: "


def test_openb_nodes(cluster_data):
    inventory = read_csv(cluster_data / "openb_nodes.csv")
    cluster = inventory.build()
    assert len(inventory.servers) == 1213
    assert total_gpus(cluster) == 6212
    assert int((np.asarray(cluster.server_id) >= 0).sum()) == 1213
    gpus = np.asarray(cluster.group_gpus).sum(-1)
    assert np.unique(gpus[np.asarray(cluster.server_id) >= 0]).tolist() == [1, 2, 4, 8]
    assert inventory.names[0] == "openb-node-0000"
    assert inventory.servers[0] == Server(groups=(2,), gpu_type="P100", cores=64, memory_mib=262144)
    speed = np.asarray(cluster.group_speed)
    assert reference_type(cluster) == "G2"
    assert speed.max() == pytest.approx(2.06 / 0.67)
    assert speed.min() == pytest.approx(0.35 / 0.67)


def test_lingjun_hosts(cluster_data):
    inventory = read_csv(cluster_data / "lingjun_hosts.csv")
    racks = [name.split("/") for name in inventory.topology.rack_names]
    assert len(inventory.servers) == len(set(inventory.names)) == 847
    assert len({asw for _, _, asw in racks}) == 48
    assert len({psw for _, psw, _ in racks}) == 3
    hosts_per_rack = np.bincount(inventory.topology.server_rack)
    assert len(hosts_per_rack) == 119
    assert hosts_per_rack.max() == 8  # what the reading "a rack is a (PSW, ASW)" rests on
    assert (hosts_per_rack == 8).sum() == 68
    assert len(inventory.topology.link_names) == 2 * (119 + 3)
    assert total_gpus(inventory.build(7)) == 847 * 8


def test_node_list_rows_become_servers_and_nodes_without_gpus_are_left_out(write):
    inventory = read_node_list(write("nodes.csv", NODES))
    assert inventory.names == ("n0", "n1")
    assert inventory.servers[0] == Server(groups=(2,), gpu_type="P100", cores=64, memory_mib=262144)
    assert inventory.servers[1] == Server(groups=(4, 4), gpu_type="G2", cores=96, memory_mib=393216)
    assert inventory.build(1).reservable.tolist() == [[[64000, 262144], [96000, 393216]]]


def test_columns_may_stand_in_any_order_and_blank_lines_do_not_count(write):
    path = write("nodes.csv", "\ufeffmodel, gpu ,zone,cpu_milli,sn\r\n\r\nT4, 4 ,z1,8000,n0\r\n")
    assert read_csv(path).servers == (Server(groups=(2, 2), gpu_type="T4", cores=8),)


def test_host_map_is_sorted_by_place_with_numbers_by_value(write):
    inventory = read_csv(write("hosts.csv", HOSTS))
    assert inventory.names == ("c", "d", "b", "a")  # P8/S2, P8/S2, P8/S10, P10/S2
    assert inventory.topology.server_rack.tolist() == [0, 0, 1, 2]
    assert inventory.servers == (Server(),) * 4


def test_host_map_with_another_server_scales_its_links(write):
    path = write("hosts.csv", HOSTS)
    fast = read_host_map(path, Server(nic_gbits_s=100)).topology.link_bytes_s
    np.testing.assert_allclose(fast, 4 * read_host_map(path).topology.link_bytes_s)


def edited(line: int, text: str) -> str:
    lines = NODES.splitlines()
    return "\n".join([*lines[: line - 1], text, *lines[line:]])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ["{path}: the file is empty", "column names"]),
        ("sn,cpu_milli,memory_mib,gpu,model\n", ["{path}: no rows"]),
        ("name,gpus\nn0,8\n", ["{path}:1: header is name,gpus", "sn,cpu_milli,gpu,model", "ip,DSW,PSW,ASW"]),
        (edited(3, "n1,96000,1,nan,G2"), ["{path}:3: gpu is 'nan'", "whole number"]),
        (edited(3, "n1,96000,1,-8,G2"), ["{path}:3: gpu is '-8'", "whole number from 0"]),
        (edited(3, "n1,96000,1,2.5,G2"), ["{path}:3: gpu is '2.5'", "whole number"]),
        (edited(3, "n1,96000,1,,G2"), ["{path}:3: gpu is empty", "whole number"]),
        (edited(3, "n1,96000,1,99999,G2"), ["{path}:3: gpu is '99999'", "to 127"]),
        (edited(2, "n0,many,1,8,G2"), ["{path}:2: cpu_milli is 'many'", "thousandths of a core"]),
        (edited(2, "n0,0,1,8,G2"), ["{path}:2: cpu_milli is '0'", "from 1"]),
        (edited(2, "n0,1,much,8,G2"), ["{path}:2: memory_mib is 'much'", "MiB, e.g. 262144"]),
        (edited(3, "n1,96000,1,8,B9000"), ["{path}:3: model", "'B9000'", "known types: V100"]),
        (edited(3, "n1,96000,1,8"), ["{path}, line 3: 4 cells", "should be 5"]),
        (edited(3, ",96000,1,8,G2"), ["{path}:3: sn is empty", "a name"]),
        (edited(3, "n0,96000,1,8,G2"), ["{path}:3: sn is 'n0'", "line 2 has it too"]),
        ("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,1,0,\n", ["{path}: no node has GPUs"]),
        ("ip,DSW,PSW,ASW\na,G6,P10,S2\nb,G6,,S2\n", ["{path}:3: PSW is empty", "a name"]),
        ("ip,DSW,PSW,ASW\na,G6,P10,S2\na,G6,P8,S2\n", ["{path}:3: ip is 'a'", "line 2"]),
    ],
)
def test_csv_mistakes_name_file_line_and_field(write, text, says):
    path = write("nodes.csv", text)
    with pytest.raises(UserError) as error:
        read_csv(path)
    assert_one_line_with(error, says, path)


def test_a_node_list_is_not_a_host_map(write):
    path = write("nodes.csv", NODES)
    with pytest.raises(UserError) as error:
        read_host_map(path)
    assert_one_line_with(error, ["{path}:1: header lacks ip, DSW, PSW, ASW"], path)


@pytest.mark.parametrize(("reader", "name"), [(read_csv, "x.csv"), (read_cluster_file, "x.yaml")])
def test_files_that_cannot_be_read(reader, name, tmp_path):
    path = tmp_path / name
    with pytest.raises(UserError) as error:
        reader(path)
    assert_one_line_with(error, ["{path}: no such file"], path)
    path.write_bytes(b"\xff\xfe\x00\x9d")
    with pytest.raises(UserError) as error:
        reader(path)
    assert_one_line_with(error, ["{path}: is not ", "UTF-8"], path)
    with pytest.raises(UserError) as error:
        reader(tmp_path)
    assert_one_line_with(error, ["{path}: is a directory, should be a"], tmp_path)


def test_cluster_file(write):
    inventory = read_cluster_file(
        write(
            "c.yaml",
            """
            servers:
              - {count: 3, groups: [4, 4], cores: 96, nic_gbits_s: 100}
              - {groups: [2], gpu_type: L40S, pcie_gbytes_s: 24.5, qpi_gbytes_s: 30}
            topology: {kind: leaf-spine, servers_per_rack: 2, oversubscription: 4.0}
            schedulers: 2
            gpu_speeds: {L40S: 2}
            """,
        )
    )
    big = Server(groups=(4, 4), cores=96, nic_gbits_s=100)
    small = Server(groups=(2,), gpu_type="L40S", pcie_gbytes_s=24.5, qpi_gbytes_s=30)
    assert inventory.servers == (big, big, big, small)
    np.testing.assert_allclose(inventory.topology.link_bytes_s, [2 * 12.5e9 / 4] * 4)
    cluster = inventory.build()
    assert cluster.shape == (2, 2, 2)
    np.testing.assert_array_equal(cluster.group_speed[1, :, 0], [1.0, 2.0])
    assert inventory.build(schedulers=4).shape == (4, 1, 2)


def test_a_cluster_file_needs_only_servers(write):
    inventory = read_cluster_file(write("c.yaml", "servers: [{count: 32}]"))
    assert inventory.servers == (Server(),) * 32
    assert inventory.schedulers == 2
    assert len(inventory.topology.rack_names) == 4


def test_partitions_with_names_have_so_many_servers_or_those_that_are_named(write):
    inventory = read_cluster_file(write("c.yaml", NAMED + "{vision: 3, speech: [server4, server1], others: 1}}"))
    assert inventory.schedulers == 3 and list(inventory.partitions) == ["vision", "speech", "others"]
    assert inventory.build().server_id.tolist() == [[0, 2, 3], [1, 4, -1], [5, -1, -1]]
    with pytest.raises(UserError, match=r"schedulers is 2, but the cluster's partitions have names \(vision, speech"):
        inventory.build(2)


def test_a_cluster_file_can_give_the_sides_of_a_torus(write):
    text = "{servers: [{count: 12}], topology: {kind: torus2d, sides: %s, link_gbits_s: 50}}"
    topology = read_cluster_file(write("c.yaml", text % "[3, 4]")).topology
    assert topology.link_names == torus2d(12, [3, 4], link_gbits_s=50.0).link_names
    for sides, said in (("4x3", "sides is '4x3'; it must be 2"), ("[[3], 4]", "sides is"), ("{a: 3}", "sides is")):
        with pytest.raises(UserError, match=said):
            read_cluster_file(write("c.yaml", text % sides))


def test_a_cluster_file_can_ask_for_a_fat_tree(write):
    text = "{servers: [{count: 8}], topology: {kind: fat-tree, servers_per_rack: 2, racks_per_pod: 2, nic_gbits_s: 10}}"
    topology = read_cluster_file(write("c.yaml", text)).topology
    np.testing.assert_allclose(topology.link_bytes_s, [2 * 1.25e9] * 8 + [4 * 1.25e9] * 4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ["{path}: the file is empty", "servers"]),
        ("servers: [\n  {count: 3\n", ["{path}:3: not YAML"]),
        ("- 3", ["{path}: found [3]", "servers, topology"]),
        ("server: []", ["{path}: unknown key 'server'", "valid keys: servers, topology, schedulers, partitions,"]),
        ("topology: {}", ["{path}: ", "missing required field `servers`"]),
        ("servers: []", ["{path}: servers: [] should be", "length >= 1"]),
        ("servers: [{count: 1}, {gpus: 8}]", ["servers[1]: unknown key 'gpus'", "groups, gpu_type, cores"]),
        ("servers: [{count: 0}]", ["{path}: servers[0]: count: 0 should be", ">= 1"]),
        ("servers: [{count: 2.5}]", ["servers[0]: count: 2.5 should be of type int"]),
        ("servers: [{count: yes}]", ["servers[0]: count: True should be of type int"]),
        ("servers: [{count: 1000000000000}]", ["servers[0]: count: 1000000000000 should be", "<= 65536"]),
        ("servers: [{groups: 8}]", ["servers[0]: groups: 8 should be of type list"]),
        ("servers: [{groups: [4, -4]}]", ["servers[0]: server: a GPU count of groups is -4", "from 1"]),
        ("servers: [{cores: .nan}]", ["{path}: servers.0.cores: NaN should be a finite number"]),
        ("servers: [{nic_gbits_s: fast}]", ["servers[0]: nic_gbits_s: 'fast' should be of type float"]),
        ("servers: [{count: 65536}, {count: 1}]", ["servers[1]: count is 1", "from 1 to 0"]),
        ("servers: [3]", ["{path}: servers[0]: found 3"]),
        ("{servers: [{}], topology: {kind: [a]}}", ["{path}: topology: kind is", "must be one of leaf-spine"]),
        ("{servers: [{}], gpu_speeds: {L40S: .inf}}", ["{path}: gpu_speeds"]),
        ("servers: [{gpu_type: B9000}]", ["servers[0]: GPU type 'B9000'", "known types"]),
        ("{servers: [{}], gpu_speeds: {B9000: 0}}", ["{path}: gpu_speeds", "0", ">= 1e-09"]),
        ("{servers: [{}], gpu_speeds: 3}", ["{path}: gpu_speeds: 3 should be of type mapping"]),
        ("{servers: [{}], topology: {kind: ring}}", ["topology: kind is 'ring'", "leaf-spine, fat-tree"]),
        (
            "{servers: [{}], topology: {racks_per_pod: 2}}",
            ["topology: unknown key 'racks_per_pod'", "servers_per_rack"],
        ),
        ("{servers: [{}], topology: {oversubscription: 0}}", ["{path}: topology: oversubscription is 0"]),
        ("{servers: [{}], topology: 3}", ["{path}: topology: 3 should be of type mapping"]),
        ("{servers: [{}], schedulers: 2}", ["{path}: schedulers is 2", "from 1 to 1"]),
        ("{servers: [{}], schedulers: two}", ["{path}: schedulers: 'two' should be of type int or None"]),
        (NAMED + "{a: 3, b: 4}}", ["{path}: partitions: the counts sum to 7", "must sum to 6, the servers"]),
        (NAMED + "{a: [server1], b: 6}}", ["sum to 6", "sum to 5, the servers that no partition names, of 6"]),
        (NAMED + "{a: [server9], b: 5}}", ["partitions: a: unknown server 'server9'", "server0 to server5"]),
        (NAMED + "{a: [server1], b: [server1], c: 4}}", ["partitions: b: server1 is in a already"]),
        (NAMED + "{a: 0, b: 6}}", ["{path}: partitions: {'a': 0, 'b': 6} should be of type int >= 1"]),
        (NAMED + "[a, b]}", ["{path}: partitions: ['a', 'b'] should be of type mapping"]),
        (NAMED + "{a: 6}, schedulers: 1}", ["{path}: has schedulers and partitions"]),
    ],
)
def test_cluster_file_mistakes_name_file_and_field(write, text, says):
    path = write("c.yaml", text)
    with pytest.raises(UserError) as error:
        read_cluster_file(path)
    assert_one_line_with(error, says, path)


def assert_one_line_with(error, says, path):
    message = str(error.value)
    assert "\n" not in message
    assert str(path) in message
    for part in says:
        assert part.replace("{path}", str(path)) in message, message
