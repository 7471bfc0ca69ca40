"""Bytes of gradients that domains sum up before they exchange them (docs/semantics.md, section 3, "Plans").

A domain is an NVLink domain, or a server elsewhere. As in `dynamics.patterns`, ranks lie in a line, and whatever holds
some of them holds an interval. Here communicators are gone through one by one, for each has its own number of domains.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from jaxsched.workload.patterns import EXPERT_GRADIENTS, GRADIENTS, PatternTable

Interval = tuple[Int32[Array, "*i"], Int32[Array, "*i"]]  # first rank, and the one behind the last


class Summed(NamedTuple):
    """Bytes a step."""

    pcie: Float32[Array, "N K"]  # of groups
    borders: Float32[Array, "N K-1"]  # between two groups of a server
    near: Float32[Array, "N"]  # of servers, to others of their domain
    nic: Float32[Array, "N"]  # of servers
    flows: Float32[Array, "T T"]  # from rack to rack


class Domains(NamedTuple):
    """In the order of their ranks; a row for each server, which is empty for all but the first of a domain."""

    ranks: Interval  # [D]
    rack: Int32[Array, "D"]
    of: Int32[Array, "N"]  # row of each server


def _line_up(first: Int32[Array, "N K"], gpus: Int32[Array, "N K"], rack: Int32[Array, "N"], held: Interval) -> Domains:
    """`held`: ranks in the domain of each server. What a cluster has no room for is a domain behind all others."""
    begin, end = held
    leads = (gpus.sum(-1) > 0) & (first[:, 0] == begin)
    order = jnp.argsort(jnp.where(leads, begin, jnp.iinfo(jnp.int32).max))
    rows = begin[order], jnp.where(leads, end, begin)[order]
    same = (rows[0] == begin[:, None]) & (rows[1] > rows[0])
    return Domains(rows, rack[order], same.argmax(-1))


def _exchange(
    tree: Bool[Array, ""], count: Int32[Array, ""], most: int
) -> tuple[Int32[Array, "edges"], Int32[Array, "edges"], Float32[Array, "edges"]]:
    """Who sends to whom, by the positions of `count` domains, at most `most`, and what share of what is summed up."""
    i = jnp.arange(most)
    lowest, wide = i & -i, jnp.maximum(count, 1)
    odd = jnp.where((i - lowest) & (2 * lowest), i - lowest, i + lowest)
    parent = jnp.where(odd < count, odd, i - lowest)
    lower, upper = [jnp.concatenate([end % wide, (end + 1) % wide]) for end in (i, parent)]
    here = (i > 0) & (i < count)
    source, target = jnp.concatenate([lower, upper]), jnp.concatenate([upper, lower])
    share = jnp.where(here, 0.5, 0.0)
    ring = jnp.where((i < count) & (count > 1), 2.0 * (count - 1) / wide, 0.0)
    nothing = jnp.zeros(3 * most)
    return (
        jnp.where(tree, source, jnp.tile(i % wide, 4)),
        jnp.where(tree, target, jnp.tile((i + 1) % wide, 4)),
        jnp.where(tree, jnp.tile(share, 4), jnp.concatenate([ring, nothing])),
    )


def sum_bytes(
    plan: PatternTable,
    first: Int32[Array, "N K"],
    gpus: Int32[Array, "N K"],
    rack: Int32[Array, "N"],
    racks: int,
    held: Interval,
) -> Summed:
    """What gradients cost that domains sum up first: bytes per step and direction, of all communicators together.

    Args:
        plan: of one model, without the axis of models; its `summed` has columns.
        first: rank of each group.
        gpus: of the job in each group.
        rack: of each server.
        racks: of all servers.
        held: ranks in the domain of each server.
    """
    domains = _line_up(first, gpus, rack, held)
    end = domains.ranks[1].max()  # ranks behind it have no place in the cluster
    groups, servers = (first, first + gpus), (first[:, 0], first[:, -1] + gpus[:, -1])
    left, right = (servers[0][:, None], first[:, 1:]), (first[:, 1:], servers[1][:, None])
    most, (n, k) = len(rack) + 1, first.shape
    zero = Summed(*(jnp.zeros(size) for size in ((n, k), (n, k - 1), n, n, (racks, racks))))

    def add(kind: int, summed: Float32[Array, ""], which: Int32[Array, ""], total: Summed) -> Summed:
        stride, size = plan.stride[kind], plan.size[kind]
        start = which // stride * stride * size + which % stride

        def members(ranks: Interval) -> Int32[Array, "*i"]:
            before, beyond = (jnp.clip(-((start - x) // stride), 0, size) for x in ranks)
            return beyond - before

        here = members(domains.ranks)
        behind = members((end, plan.gpus)) > 0
        place = jnp.cumsum(here > 0) - 1
        count = (here > 0).sum() + behind
        source, target, share = _exchange(plan.tree, count, most)
        sent = jnp.zeros(most).at[source].add(share * summed)
        each = (sent[place] / jnp.maximum(here, 1))[domains.of]  # of a rank to other domains
        at = jnp.zeros(most, jnp.int32).at[jnp.where(here > 0, place, most)].set(domains.rack, mode="drop")

        own, near, across = members(groups), members(servers), here[domains.of]
        ring = jnp.where(across > 1, 2.0 * (across - 1) / jnp.maximum(across, 1) * summed, 0.0)
        return Summed(
            pcie=total.pcie + jnp.where(own > 0, ring[:, None], 0.0) + own * each[:, None],
            borders=total.borders + jnp.where((members(left) > 0) & (members(right) > 0), ring[:, None], 0.0),
            near=total.near + jnp.where((near > 0) & (near < across), ring, 0.0),
            nic=total.nic + near * each,
            flows=total.flows.at[at[source], at[target]].add(share * summed),
        )

    total = zero
    for column, kind in enumerate((GRADIENTS, EXPERT_GRADIENTS)):
        summed = plan.summed[column]
        rounds = jnp.where(summed > 0, plan.gpus // plan.size[kind], 0)
        total = lax.fori_loop(0, rounds, lambda i, so_far: add(kind, summed, i, so_far), total)  # noqa: B023
    return total
