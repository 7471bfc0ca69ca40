"""Candidate placements of one job on one partition (docs/semantics.md, section 7).

For gangs they are anchor servers x caps per group; for a fraction of a GPU there are also the GPUs one by one.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int16, Int32

from jaxsched.dynamics.footprint import JobSpec
from jaxsched.dynamics.resources import layout_of
from jaxsched.policies.filling import fill_from, fill_servers_in_order, quantise
from jaxsched.policies.rules import View, capacity, per_server, server_pressure
from jaxsched.semantics import ANCHORS, CAPS, GPUS, OPENED
from jaxsched.workload.jobs import WHOLE

_WORST = 2**30


def list_anchors(view: View, job: JobSpec) -> Int32[Array, "A"]:
    """The best servers by packing, then by pressure; -1 where there is none left.

    `A` is 2 `ANCHORS`, or `ANCHORS` on a partition so small that the first list holds every server.
    """
    layout = layout_of(view.cluster)
    fits = per_server(layout, capacity(view, job))
    size = min(ANCHORS, layout.servers)

    def best(key: Array) -> Array:
        chosen = []
        for _ in range(size):  # a sort would be called apart (`machine.loop_options`)
            server = jnp.argmin(key)
            chosen.append(jnp.where(key[server] < _WORST, server, -1))
            key = jnp.where(jnp.arange(layout.servers) == server, _WORST, key)
        return jnp.pad(jnp.stack(chosen), (0, ANCHORS - size), constant_values=-1)

    packed = best(jnp.where(fits == 0, _WORST, jnp.where(fits >= job.workers, fits, 100_000 - fits)))
    if layout.servers <= ANCHORS:
        return packed
    taken = (jnp.arange(layout.servers)[:, None] == packed).any(-1)
    calm = best(jnp.where((fits == 0) | taken, _WORST, quantise(server_pressure(view))))
    return jnp.concatenate([packed, calm])


def list_candidates(view: View, job: JobSpec) -> tuple[Int32[Array, "C NK"], Bool[Array, "C"]]:
    """Workers per group and validity, index = anchor * 3 + cap.

    Where racks may be unevenly far apart, index = anchor * 6 + in a row * 3 + cap.
    """
    layout = layout_of(view.cluster)
    fits, rack, index = capacity(view, job), view.cluster.server_rack, jnp.arange(layout.servers)

    def one(anchor: Array, cap: Array) -> tuple[Array, Array]:
        capped = jnp.minimum(fits, cap)
        by_server = per_server(layout, capped)
        binding = (cap >= CAPS[0]) | (cap < job.workers)
        valid = (anchor >= 0) & binding & (by_server.sum() >= job.workers)
        elsewhere = (index != anchor).astype(jnp.int32) + (rack != rack[anchor])
        near = fill_servers_in_order(elsewhere * 2048 + (1024 - by_server), capped, job.workers)
        if not view.cluster.uneven.size:
            return near[None], valid[None]
        others = valid & (view.cluster.uneven.sum() > 0) & (by_server[anchor] < job.workers)
        return jnp.stack([near, fill_from(anchor * layout.groups, capped, job.workers)]), jnp.stack([valid, others])

    every_cap = jax.vmap(one, in_axes=(None, 0), out_axes=1)
    workers, valid = jax.vmap(every_cap, in_axes=(0, None))(list_anchors(view, job), jnp.array(CAPS, jnp.int32))
    return workers.reshape(-1, layout.nk), valid.reshape(-1)


def list_single_gpus(
    view: View, shared: Int16[Array, "NK S"], milli: Int32[Array, ""]
) -> tuple[Int32[Array, "G NK"], Int32[Array, "G"], Bool[Array, "G"]]:
    """GPUs that a fraction of one may lie on: workers per group, index of the GPU in its group, and validity.

    First shared ones with enough left, by index, then a free one of each of the groups with the fewest.
    """
    used = shared.astype(jnp.int32)
    fits = view.room >= milli
    enough = ((used > 0) & (used + milli <= WHOLE) & fits[:, None]).reshape(-1)
    place = jnp.cumsum(enough) - 1
    wanted = enough & (place == jnp.arange(GPUS)[:, None])
    group, slot = jnp.divmod(jnp.argmax(wanted, -1), shared.shape[1])

    opened, left = [], jnp.where(fits & (view.free > 0), view.free, _WORST)
    for _ in range(OPENED):
        opened.append(jnp.argmin(left))
        left = jnp.where(jnp.arange(left.shape[0]) == opened[-1], _WORST, left)
    anew = jnp.stack(opened)
    first = jnp.arange(OPENED) < (fits & (view.free > 0)).sum()
    index = jnp.concatenate([slot, jnp.argmax(used[anew] == 0, -1)]).astype(jnp.int32)
    workers = jnp.concatenate([group, anew])[:, None] == jnp.arange(shared.shape[0])
    return workers.astype(jnp.int32), index, jnp.concatenate([wanted.any(-1), first])
