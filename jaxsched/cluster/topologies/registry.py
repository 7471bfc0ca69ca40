"""Every family of networks by name: `NAME-N` as a preset, `topology: {kind: NAME}` in a cluster file."""

from collections.abc import Callable, Mapping

from jaxsched.cluster.topologies.bcube import bcube
from jaxsched.cluster.topologies.dragonfly import dragonfly
from jaxsched.cluster.topologies.rail import rail
from jaxsched.cluster.topologies.torus import torus2d, torus3d
from jaxsched.cluster.topologies.vl2 import vl2
from jaxsched.cluster.topology import Topology, fat_tree, leaf_spine

# Each takes the number of servers, then the options of its docstring, `nic_gbits_s` among them.
TOPOLOGIES: Mapping[str, Callable[..., Topology]] = {
    "leaf-spine": leaf_spine,
    "fat-tree": fat_tree,
    "vl2": vl2,
    "bcube": bcube,
    "dragonfly": dragonfly,
    "torus2d": torus2d,
    "torus3d": torus3d,
    "rail": rail,
}
