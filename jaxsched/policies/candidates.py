"""Candidate placements of one job on one partition: anchor servers x caps per group (docs/semantics.md, section 7)."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int32

from jaxsched.dynamics.footprint import JobSpec
from jaxsched.dynamics.resources import layout_of
from jaxsched.policies.filling import fill_in_order, quantise
from jaxsched.policies.rules import View, capacity, per_server, server_pressure, to_groups
from jaxsched.semantics import ANCHORS, CAPS

_NEVER = 2**30


def anchors(view: View, job: JobSpec) -> Int32[Array, "A"]:
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
            chosen.append(jnp.where(key[server] < _NEVER, server, -1))
            key = jnp.where(jnp.arange(layout.servers) == server, _NEVER, key)
        return jnp.pad(jnp.stack(chosen), (0, ANCHORS - size), constant_values=-1)

    packed = best(jnp.where(fits == 0, _NEVER, jnp.where(fits >= job.workers, fits, 100_000 - fits)))
    if layout.servers <= ANCHORS:
        return packed
    taken = (jnp.arange(layout.servers)[:, None] == packed).any(-1)
    calm = best(jnp.where((fits == 0) | taken, _NEVER, quantise(server_pressure(view))))
    return jnp.concatenate([packed, calm])


def candidates(view: View, job: JobSpec) -> tuple[Int32[Array, "C NK"], Bool[Array, "C"]]:
    """Workers per group and validity, index = anchor * 3 + cap."""
    layout = layout_of(view.cluster)
    fits = capacity(view, job)
    rack = view.cluster.server_rack
    index = jnp.arange(layout.servers)

    def one(anchor: Array, cap: Array) -> tuple[Array, Array]:
        capped = jnp.minimum(fits, cap)
        by_server = per_server(layout, capped)
        elsewhere = (index != anchor).astype(jnp.int32) + (rack != rack[anchor])
        key = elsewhere * 2048 + (1024 - by_server)
        workers = fill_in_order(to_groups(layout, key), capped, job.workers)
        binding = (cap >= CAPS[0]) | (cap < job.workers)
        return workers, (anchor >= 0) & binding & (by_server.sum() >= job.workers)

    every_cap = jax.vmap(one, in_axes=(None, 0))
    workers, valid = jax.vmap(every_cap, in_axes=(0, None))(anchors(view, job), jnp.array(CAPS, jnp.int32))
    return workers.reshape(-1, layout.nk), valid.reshape(-1)
