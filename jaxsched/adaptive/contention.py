"""Jobs that share NICs and links: how much longer each takes to synchronise (docs/semantics.md, section 13)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, Int

from jaxsched.adaptive.knowing import share_of
from jaxsched.adaptive.state import SCHEDULERS, AdaptiveJobs, AdaptiveWorld, Network, State
from jaxsched.cluster.build import build_rows
from jaxsched.cluster.hardware import in_domain
from jaxsched.cluster.inventory import Inventory
from jaxsched.dynamics.interference import Interference, none
from jaxsched.dynamics.resources import LINK, NIC
from jaxsched.dynamics.traffic import ring_flows

_NOTHING: dict[str, Any] = {name: np.zeros(0, np.int32) for name in ("nic_bytes_s", "rack", "domain")}
_NOTHING["byte_s"] = np.zeros((0, 0, 0))
NO_NETWORK = Network(**_NOTHING, law=Interference(law=none, weights=()))  # nothing contends


def network_of(inventory: Inventory, order: Int[np.ndarray, "N"], law: Interference) -> Network:
    """What lies between the servers of an inventory. `order`: their rows, as the world has its nodes.

    UserError if routes between all racks need too much memory.
    """
    cluster = build_rows(inventory.servers, inventory.topology, order[None], inventory.gpu_speeds)
    rack = np.asarray(cluster.server_rack[0])
    alone = np.full(rack.shape, True)
    if cluster.domain_block.size:
        alone = ~np.asarray(in_domain(cluster))[0]
    links = np.asarray(cluster.link_bytes_s, np.float64)[np.asarray(cluster.link_id[0])]
    arrays: dict[str, Any] = {  # of the host: 64-bit floats may be off here
        "nic_bytes_s": np.asarray(cluster.nic_bytes_s[0], np.float64),
        "rack": rack,
        "domain": np.where(alone, cluster.rack_id.shape[1] + np.arange(len(rack)), rack).astype(np.int32),
        "byte_s": np.asarray(cluster.route[0], np.float64) / links,
    }
    return Network(**arrays, law=law)


def stretches(world: AdaptiveWorld, jobs: AdaptiveJobs, state: State) -> Float64[Array, "J"]:
    """How many times as long as measured jobs synchronise in the round that begins; 1 where nothing contends."""
    network = world.network
    if not network.contends:
        return jnp.ones(jobs.real.shape)
    row = jnp.minimum(state.epoch, world.tables.epochs[jobs.plan] - 1)
    share = jnp.where(state.gpus > 0, share_of(world, jobs, state, row), 0.0)
    load = _loads(network, state.place)
    alone = jnp.maximum(load.max(-1), 1.0)
    use = load * (share / (1.0 + share * (alone - 1.0)))[:, None]
    total = use.sum(0)
    if world.owner.size:  # nodes are apart, links are not
        total = jax.lax.psum(total, SCHEDULERS)
    others, nodes = jnp.maximum(total - use, 0.0), network.rack.shape[0]
    model = jnp.zeros((), jnp.int32)  # applications are none of the catalogue
    slower = [
        network.law(channel, model, use[:, part], others[:, part])
        for channel, part in ((NIC, slice(None, nodes)), (LINK, slice(nodes, None)))
    ]
    return jnp.maximum((load * jnp.concatenate(slower, axis=1)).max(-1), 1.0)


def _loads(network: Network, place: Int[Array, "J N"]) -> Float64[Array, "J M"]:
    """Seconds that every NIC, and every link, needs for what a job synchronises in a second where it was measured."""
    on = place > 0
    near = on.astype(jnp.int32) @ (network.domain[:, None] == network.domain).astype(jnp.int32)
    far = on & (near < on.sum(-1, keepdims=True))
    slowest = jnp.where(on, network.nic_bytes_s, jnp.inf).min(-1, keepdims=True)
    bytes_s = jnp.where(far.any(-1, keepdims=True), slowest, 0.0)
    nics = jnp.where(far, bytes_s / (jnp.maximum(near, 1) * network.nic_bytes_s), 0.0)
    racks = network.byte_s.shape[0]
    flows = jax.vmap(ring_flows)(on.astype(jnp.int32) @ (network.rack[:, None] == jnp.arange(racks)) > 0)
    hops = jnp.where(flows.any(-1)[..., None], network.byte_s[jnp.arange(racks), flows.argmax(-1)], 0.0)
    return jnp.concatenate([nics, bytes_s * hops.sum(1)], axis=1)
