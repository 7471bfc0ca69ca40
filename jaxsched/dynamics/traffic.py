"""Bytes per training step that a placement puts on PCIe, QPI, NICs and links (docs/semantics.md, section 3)."""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int, Int32, Num

from jaxsched.cluster.hardware import Cluster, in_domain
from jaxsched.dynamics.batching import lane_by_lane, on_cpu

AT_ONCE = 2048  # entries of `Cluster.route`: with so many or fewer, one product is faster than a loop


def ring_bytes(
    gradient_bytes: Float32[Array, "*#jobs"] | float, ranks: Num[Array, "*#jobs"]
) -> Float32[Array, "*#jobs"]:
    """Bytes each rank of a ring all-reduce sends per step: `2 (n-1)/n B` (Patarasuk & Yuan, 2009). 0 for n <= 1."""
    n = jnp.maximum(ranks, 1).astype(jnp.float32)
    return 2.0 * (n - 1.0) / n * gradient_bytes


def ring_flows(present: Bool[Array, "T"]) -> Float32[Array, "T T"]:
    """1 where rack t sends to rack u on a ring over the racks that are `present`, ascending.

    All zero when fewer than two racks are present.
    """
    size = present.shape[0]
    index = jnp.arange(size)
    hops = (index[None, :] - index[:, None]) % size
    hops = jnp.where(present[None, :] & (hops > 0), hops, size)
    successor = hops == hops.min(axis=1, keepdims=True)
    return (successor & present[:, None] & (hops < size)).astype(jnp.float32)


def exchanges(w_rack: Float32[Array, "T"], u_rack: Float32[Array, "T"]) -> Float32[Array, "T T"]:
    """How many pairs of a worker and a PS are in rack t and in rack u, another one."""
    pairs = w_rack[:, None] * u_rack[None, :] + u_rack[:, None] * w_rack[None, :]
    return pairs * (1.0 - jnp.eye(pairs.shape[0]))


def _over_links(cluster: Cluster, w_rack: Float32[Array, "T"], u_rack: Float32[Array, "T"]) -> Float32[Array, "E"]:
    """How often what two tasks send each other crosses each link, by workers and PS of racks; without PS, on a ring.

    On a CPU many routes over many links are walked pair by pair: a gang is in few racks. Else all are added up at once.
    """
    if cluster.route.size <= AT_ONCE or not on_cpu():
        flows = jnp.where(u_rack.sum() > 0, exchanges(w_rack, u_rack), ring_flows(w_rack > 0))
        return jnp.einsum("tu,tue->e", flows, cluster.route)
    return _walk(cluster.path, cluster.path_share, w_rack, u_rack, jnp.zeros(cluster.route.shape[-1]))


@lane_by_lane
def _walk(
    path: Int32[Array, "T T hops"],
    path_share: Float32[Array, "T T hops"],
    w_rack: Float32[Array, "T"],
    u_rack: Float32[Array, "T"],
    crossed: Float32[Array, "E"],
) -> Float32[Array, "E"]:
    """`crossed` and, pair by pair of a gang's racks, what crosses the links between them."""
    by_ps = u_rack.sum() > 0
    place_w, place_u = jnp.cumsum(w_rack > 0), jnp.cumsum(u_rack > 0)
    count_w, count_u = place_w[-1], jnp.maximum(place_u[-1], 1)

    def send(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        turn, crossed = carry
        t = jnp.argmax(place_w > jnp.where(by_ps, turn // count_u, turn))
        u = jnp.where(by_ps, jnp.argmax(place_u > turn % count_u), jnp.argmax(place_w > (turn + 1) % count_w))
        there = jnp.where(by_ps, jnp.where(t == u, 0.0, w_rack[t] * u_rack[u]), 1.0)
        back = jnp.where(by_ps, there, 0.0)
        crossed = crossed.at[path[t, u]].add(there * path_share[t, u])
        return turn + 1, crossed.at[path[u, t]].add(back * path_share[u, t])

    turns = jnp.where(by_ps, count_w * count_u, jnp.where(count_w > 1, count_w, 0))
    return lax.while_loop(lambda carry: carry[0] < turns, send, (jnp.int32(0), crossed))[1]


def rack_matrix(cluster: Cluster) -> Float32[Array, "N T"]:
    """1 where server n stands in local rack t."""
    return (cluster.server_rack[:, None] == jnp.arange(cluster.rack_id.shape[-1])).astype(jnp.float32)


def placement_bytes(
    cluster: Cluster,
    workers: Int[Array, "N K"],
    ps: Int[Array, "N K"],
    gpus_per_worker: Int32[Array, ""],
    gradient_bytes: Float32[Array, ""],
) -> Float32[Array, "wires"]:
    """Bytes per step and direction on every communication resource of one partition.

    Args: `cluster`: one partition (no leading P axis); `workers`, `ps`: tasks per GPU group.
    """
    w, u = workers.astype(jnp.float32), ps.astype(jnp.float32)
    w_server, u_server = w.sum(-1), u.sum(-1)
    racks = rack_matrix(cluster)
    w_rack, u_rack = w_server @ racks, u_server @ racks
    w_all, u_all = w.sum(), u.sum()

    # Tasks, and servers with workers, of each server's domain: of itself, unless its rack is one.
    w_near, u_near, joined, holds = w_server, u_server, (w > 0).sum(-1), w_server > 0
    servers_near = jnp.ones_like(w_server)
    if cluster.domain_block.size:
        inside, together = in_domain(cluster), racks @ racks.T
        w_near, u_near = (
            jnp.where(inside, together @ w_server, w_server),
            jnp.where(inside, together @ u_server, u_server),
        )
        servers_near = jnp.where(inside, jnp.maximum(together @ holds.astype(jnp.float32), 1.0), 1.0)
        joined = jnp.where(inside & holds, servers_near, joined)

    b = ring_bytes(gradient_bytes, w_all * gpus_per_worker)
    ring = jnp.concatenate(
        [
            jnp.where(w > 0, b, 0.0).reshape(-1),
            jnp.where(joined >= 2, b, 0.0),
            jnp.where(holds & (w_near < w_all), b / servers_near, 0.0),
            b * _over_links(cluster, w_rack, u_rack),
        ]
    )

    shard = gradient_bytes / jnp.maximum(u_all, 1.0)
    near = w_server * (u_near - u_server) + u_server * (w_near - w_server)
    server = jnp.concatenate(
        [
            (w * gradient_bytes).reshape(-1),
            (w_server * u_server - (w * u).sum(-1) + near) * shard,
            (w_server * (u_all - u_near) + u_server * (w_all - w_near)) * shard,
            shard * _over_links(cluster, w_rack, u_rack),
        ]
    )
    return jnp.where(u_all > 0, server, ring)
