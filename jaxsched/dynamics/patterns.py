"""Bytes that the ranks of a plan put on PCIe, QPI, NICs and links (docs/semantics.md, section 3, "Plans").

Ranks lie in a line, in order of rack, server and group, so that whatever holds some of them holds an interval. How many
of an interval's ranks send to another interval is counted, not gone through: a rank's `shift`-th successor is `shift
stride` further in the line, or `(size - shift) stride` back where its communicator ends.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32, Int32

from jaxsched.cluster.hardware import Cluster, in_domain
from jaxsched.dynamics.all_reduce import Interval, Summed, sum_bytes
from jaxsched.dynamics.batching import lane_by_lane, on_cpu
from jaxsched.workload.patterns import EXCHANGE, EXPERT_GRADIENTS, GRADIENTS, NEIGHBOURS, TENSOR, PatternTable

AT_ONCE = 2048  # entries of `Cluster.route`: with so many or fewer, one product is faster than adding to lists of links


def _divide(x: Int32[Array, "*i"], by: Int32[Array, "*#i"]) -> Int32[Array, "*i"]:
    """`x // by` of ranks: not negative, and below 2^21, where this is exact. CPUs divide integers one by one."""
    return jnp.floor((x + jnp.float32(0.5)) / by.astype(jnp.float32)).astype(jnp.int32)


def _tail(end: Int32[Array, "*i"], span: Int32[Array, ""], head: Int32[Array, ""]) -> Int32[Array, "*i"]:
    """How many `i` of `0 .. end - 1` have `i mod span >= head`."""
    whole = _divide(end, span)
    return whole * (span - head) + jnp.maximum(end - whole * span - head, 0)


def count_sends(
    stride: Int32[Array, ""], size: Int32[Array, ""], shift: int, source: Interval, target: Interval
) -> tuple[Int32[Array, "*i"], Int32[Array, "*i"]]:
    """Ranks of `source` whose `shift`-th successor is in `target`: further in the line, and back.

    `shift` is 1 to `size` - 1; of a communicator of one rank with shift 1, none further, and all back, to themselves.
    """
    span = stride * size
    head = span - shift * stride
    first, last = jnp.maximum(source[0], target[0] - shift * stride), jnp.minimum(source[1], target[1] - shift * stride)
    last = jnp.maximum(first, last)
    on = last - first - (_tail(last, span, head) - _tail(first, span, head))
    first, last = jnp.maximum(source[0], target[0] + head), jnp.minimum(source[1], target[1] + head)
    last = jnp.maximum(first, last)
    return on, _tail(last, span, head) - _tail(first, span, head)


def count_pairs(
    stride: Int32[Array, ""] | int, size: Int32[Array, ""] | int, source: Interval, target: Interval
) -> Int32[Array, "*i"]:
    """Pairs of a rank of `source` and another one of `target` that are in the same communicator."""
    stride, size = jnp.maximum(jnp.asarray(stride), 1), jnp.maximum(size, 1)
    span = stride * size

    def below(x: Int32[Array, "*i"], y: Int32[Array, "*i"]) -> Int32[Array, "*i"]:
        """Pairs of ranks below `x` and below `y`: of whole spans, and of the one in which the lesser lies.

        There a communicator has `a` ranks below, and one more if it is among the first `b` of the span.
        """
        whole = _divide(jnp.minimum(x, y), span)
        rests = [jnp.minimum(end - whole * span, span) for end in (x, y)]
        a, c = (_divide(rest, stride) for rest in rests)
        b, d = rests[0] - a * stride, rests[1] - c * stride
        in_last = stride * a * c + a * d + b * c + jnp.minimum(b, d)
        return whole * span * size + in_last - jnp.minimum(x, y)

    (first, end), (begin, last) = source, target
    return below(end, last) - below(first, last) - below(end, begin) + below(first, begin)


def count_all(plan: PatternTable, source: Interval, target: Interval) -> Int32[Array, "patterns *i"]:
    """How many ranks of one interval send to one of another, by the patterns of a model; pairs, where all exchange."""
    of = lambda kind: (plan.stride[kind], plan.size[kind])
    rings = [sum(count_sends(*of(kind), 1, source, target)) for kind in (TENSOR, GRADIENTS, EXPERT_GRADIENTS)]
    stages = count_sends(*of(NEIGHBOURS), 1, source, target)[0] + count_sends(*of(NEIGHBOURS), 1, target, source)[0]

    pairs = count_pairs(*of(EXCHANGE), source, target)
    return jnp.stack([*rings, stages, pairs])


def _bytes(plan: PatternTable, counts: Int32[Array, "patterns *i"]) -> Float32[Array, "*i"]:
    return jnp.asarray(sum(plan.nbytes[kind] * count for kind, count in enumerate(counts)))


def _leaving(plan: PatternTable, held: Interval) -> Int32[Array, "patterns *i"]:
    """How many of each interval's ranks send to one outside. Integers are subtracted: bytes would leave rounding."""
    everybody = jnp.zeros_like(held[0]), jnp.broadcast_to(plan.gpus, held[0].shape)
    return count_all(plan, held, everybody) - count_all(plan, held, held)


def inside_bytes(
    plan: PatternTable,
    first: Int32[Array, "N K"],
    gpus: Int32[Array, "N K"],
    domains: Sequence[Interval],
    sums: Sequence[Summed],
) -> Float32[Array, "wires"]:
    """On PCIe of groups, QPI and NIC of servers, by each group's first rank and its GPUs of the job.

    `domains`: one entry, the ranks in each server's domain; none where each is its own. `sums`: one entry; none where
    all gradients are rings.
    """
    groups, servers = (first, first + gpus), (first[:, 0], first[:, -1] + gpus[:, -1])
    counts = _leaving(plan, groups)
    for kind in (GRADIENTS, EXPERT_GRADIENTS):  # and the rings that are in one group
        counts = counts.at[kind].add(count_sends(plan.stride[kind], plan.size[kind], 1, groups, groups)[1])
    border = first[:, 1:]
    left = jnp.broadcast_to(servers[0][:, None], border.shape), border
    right = border, jnp.broadcast_to(servers[1][:, None], border.shape)
    borders = _bytes(plan, count_all(plan, left, right))
    pcie, leaving = _bytes(plan, counts), _leaving(plan, servers)
    for more in sums:
        pcie, borders = pcie + more.pcie, borders + more.borders
    qpi = borders.max(-1, initial=0.0)
    for held in domains:
        near = count_all(plan, servers, held) - count_all(plan, servers, servers)
        qpi, leaving = qpi + _bytes(plan, near), leaving - near
    nic = _bytes(plan, leaving)
    for more in sums:
        qpi, nic = qpi + more.near, nic + more.nic
    return jnp.concatenate([pcie.reshape(-1), qpi, nic])


def _sums(
    plan: PatternTable,
    first: Int32[Array, "N K"],
    gpus: Int32[Array, "N K"],
    rack: Int32[Array, "N"],
    racks: int,
    domains: Sequence[Interval],
) -> list[Summed]:
    """What gradients cost that domains sum up first, if any model's do; of `inside_bytes`."""
    if not plan.summed.size:
        return []
    own = first[:, 0], first[:, -1] + gpus[:, -1]
    return [sum_bytes(plan, first, gpus, rack, racks, domains[0] if domains else own)]


def plan_bytes(cluster: Cluster, plan: PatternTable, gpus: Int32[Array, "N K"]) -> Float32[Array, "wires"]:
    """Bytes per step and direction on every communication resource of one partition, by a job's GPUs in each group.

    Args: `cluster`: one partition (no leading P axis); `plan`: of one model, without the axis of models.
    """
    own = gpus.sum(-1)
    racks = jnp.arange(cluster.rack_id.shape[-1])
    in_rack = jnp.where(cluster.server_rack[:, None] == racks, own[:, None], 0)
    by_rack = in_rack.sum(0)
    rack_first = jnp.cumsum(by_rack) - by_rack
    server_first = ((jnp.cumsum(in_rack, 0) - in_rack) * (cluster.server_rack[:, None] == racks)).sum(-1)
    server_first += rack_first[cluster.server_rack]
    first = server_first[:, None] + jnp.cumsum(gpus, -1) - gpus

    domains = []
    if cluster.domain_block.size:
        joined, rack, own_first = in_domain(cluster), cluster.server_rack, first[:, 0]
        begin = jnp.where(joined, rack_first[rack], own_first)
        domains.append((begin, jnp.where(joined, (rack_first + by_rack)[rack], own_first + own)))
    sums = _sums(plan, first, gpus, cluster.server_rack, len(racks), domains)
    flows = sum((more.flows for more in sums), jnp.zeros((len(racks), len(racks))))
    crossed = _over_links(cluster, plan, (rack_first, rack_first + by_rack), flows)
    return jnp.concatenate([inside_bytes(plan, first, gpus, domains, sums), crossed])


def _over_links(
    cluster: Cluster, plan: PatternTable, racks: Interval, flows: Float32[Array, "T T"]
) -> Float32[Array, "E"]:
    """Bytes on each link, by the ranks in each rack and what racks send each other beside that.

    On a CPU many routes over many links are walked rack by rack: a gang is in few. Else all are added up at once.
    """
    if cluster.route.size > AT_ONCE and on_cpu():
        return _walk(cluster.path, cluster.path_share, plan, *racks, flows, jnp.zeros(cluster.route.shape[-1]))
    begin, end = (jnp.broadcast_to(x[:, None], flows.shape) for x in racks)
    flows += _bytes(plan, count_all(plan, (begin, end), (begin.T, end.T)))
    return jnp.einsum("tu,tue->e", flows * (1.0 - jnp.eye(len(flows))), cluster.route)


@lane_by_lane
def _walk(
    path: Int32[Array, "T T hops"],
    path_share: Float32[Array, "T T hops"],
    plan: PatternTable,
    begin: Int32[Array, "T"],
    end: Int32[Array, "T"],
    flows: Float32[Array, "T T"],
    crossed: Float32[Array, "E"],
) -> Float32[Array, "E"]:
    """`crossed` and, rack by rack of a gang, what crosses the links from there."""

    def send(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        left, crossed = carry
        t = jnp.argmax(left)
        source = jnp.broadcast_to(begin[t], begin.shape), jnp.broadcast_to(end[t], end.shape)
        sent = flows[t] + _bytes(plan, count_all(plan, source, (begin, end)))
        sent = jnp.where(jnp.arange(len(begin)) == t, 0.0, sent)
        return left.at[t].set(False), crossed.at[path[t]].add(sent[:, None] * path_share[t])

    return lax.while_loop(lambda carry: carry[0].any(), send, (end > begin, crossed))[1]


def ideal_bytes(
    plan: PatternTable,
    servers: int,
    groups: int,
    server_gpus: Int32[Array, ""],
    group_gpus: Int32[Array, ""],
    *domain_servers: Int32[Array, ""],
) -> Float32[Array, "wires"]:
    """As `inside_bytes`, where ranks fill up to `servers` servers of `server_gpus` GPUs, in groups of `group_gpus`.

    So many servers after each other are a domain, `domain_servers`, if it is given.
    """
    start = server_gpus * jnp.arange(servers)[:, None]
    first = start + jnp.minimum(group_gpus * jnp.arange(groups), server_gpus)
    ends = start + jnp.minimum(group_gpus * (1 + jnp.arange(groups)), server_gpus)
    first, ends = jnp.minimum(first, plan.gpus), jnp.minimum(ends, plan.gpus)
    domains = []
    for size in domain_servers:
        begin = jnp.arange(servers) // size * size
        begin, end = jnp.minimum(server_gpus * jnp.stack([begin, jnp.minimum(begin + size, servers)]), plan.gpus)
        domains.append((begin, end))
    sums = _sums(plan, first, ends - first, jnp.zeros(servers, jnp.int32), 1, domains)
    return inside_bytes(plan, first, ends - first, domains, sums)
