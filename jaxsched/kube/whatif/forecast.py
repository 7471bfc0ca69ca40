"""When pending gangs would start, under some policies: rollouts of the compiled event loop with uncertain run times.

Pure and read-only. Nobody else comes, or gangs like those of a history; no node fails. GPUs, partitions and priorities
are simulated; what else a plan looks at (CPU, memory, topology domains, the fallback for late gangs) is not. A gang
that the planner would not place now for want of these gets its reason instead of times; where they could matter later,
the answer names them. docs/kubernetes.md says what that means.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from jaxsched.env.knowledge import HISTORY
from jaxsched.env.state import EnvConfig, make_params
from jaxsched.errors import UserError
from jaxsched.event_loop import why_not
from jaxsched.kube.capacity.filters import close_domains, count_nominations
from jaxsched.kube.capacity.fleet import gpu_nodes, nodes_without_gpus, read_fleet
from jaxsched.kube.capacity.free_capacity import FreeCapacity
from jaxsched.kube.capacity.ledger import find_running_parts
from jaxsched.kube.plan.explain import Explanations
from jaxsched.kube.read.gangs import Gang, form_gangs
from jaxsched.kube.read.objects import Pod, Refusal
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.read.snapshot import Snapshot, add_volume_affinity, find_unusable_volume
from jaxsched.kube.whatif.recorded import History
from jaxsched.kube.whatif.rollouts import HIGH, LOW, Pool, Question, Starts, play_futures, pools_of
from jaxsched.policies.policy import Policy

SAME_ORDER = ("fifo", "sjf", "area")  # orders into which priorities can be put


@dataclasses.dataclass(frozen=True)
class Forecast:
    """One gang under one policy. Times are seconds from now, inf: not before the horizon, None: not simulated."""

    policy: str
    gang: Gang
    waits_s: float  # so far
    median_s: float | None
    low_s: float | None  # 5% of the draws start before
    high_s: float | None  # 95%
    nodes: tuple[str, ...] = ()  # in the draw with the median start
    behind: tuple[str, ...] = ()  # keys of the pending gangs that start before it in its partition, in that draw
    reason: Refusal | None = None  # why nothing is said, or no start found
    beyond_gpus: tuple[str, ...] = ()  # resources that are not simulated and may hold it up longer


def forecast_starts(
    snapshot: Snapshot,
    policies: Sequence[Policy],
    settings: PlanSettings,
    question: Question,
    history: History | None = None,
) -> list[Forecast]:
    """Say when the pending gangs would start.

    Args:
        snapshot: The cluster now.
        policies: Hand-written ones, each by itself.
        settings: How the snapshot is read; the same as for a plan.
        question: How many futures, how far, how uncertain.
        history: What came before; other gangs come like it, in another way in every draw. None: nobody else comes.

    Returns:
        For each policy all pending gangs, higher priority first, then the oldest.

    Raises:
        UserError: A policy cannot be played.
    """
    settings = dataclasses.replace(settings, settle_s=0.0)  # a manifest's pods are new, and all there
    fleet = read_fleet(gpu_nodes(snapshot.nodes, settings), settings)
    pods = close_domains(_start_nominated(snapshot, settings), snapshot.nodes, settings.scheduler_name)
    pods = add_volume_affinity(pods, snapshot.volume_claims, snapshot.volumes)
    capacity = FreeCapacity(fleet, nodes_without_gpus(snapshot.nodes, settings), pods, settings)
    now_s = snapshot.now_s
    found = form_gangs(pods, snapshot.groups, snapshot.served, settings, now_s, snapshot.owners)
    gangs = sorted((one for one in found if one.pending), key=lambda one: (-one.priority, one.submit_s, one.key))
    aside = {gang.key: reason for gang in gangs if (reason := _not_simulated(capacity, gang, snapshot))}
    playable = [gang for gang in gangs if gang.key not in aside]
    running = find_running_parts(fleet, capacity.ledger, pods, settings, now_s)
    pools = pools_of(capacity, playable, running, history)
    beyond = [_beyond_gpus(capacity, pool.gangs, pods) for pool in pools]
    result: list[Forecast] = []
    for policy in policies:
        _check(policy, [*playable, *(() if history is None else history.gangs)], capacity)
        why = Explanations(capacity, policy.name)
        said = {gang.key: _without_times(policy, gang, now_s, aside[gang.key]) for gang in gangs if gang.key in aside}
        for pool, beyond_gpus in zip(pools, beyond):
            starts = play_futures(policy, pool, settings, question, now_s)
            for key, answer in _of_pool(policy, pool, starts, capacity, why, now_s).items():
                said[key] = answer if answer.median_s is None else dataclasses.replace(answer, beyond_gpus=beyond_gpus)
        result += [said[gang.key] for gang in gangs]
    return result


def _start_nominated(snapshot: Snapshot, settings: PlanSettings) -> tuple[Pod, ...]:
    """All pods; those of other schedulers for which room is being made start now."""
    settled = count_nominations(snapshot.pods, settings.scheduler_name)
    pairs = zip(settled, snapshot.pods, strict=True)
    return tuple(pod if pod is was else dataclasses.replace(pod, started_s=snapshot.now_s) for pod, was in pairs)


def _not_simulated(capacity: FreeCapacity, gang: Gang, snapshot: Snapshot) -> Refusal | None:
    """Why a gang is left out, of the others' rollouts too."""
    reason = gang.refusal or gang.waiting
    reason = reason or find_unusable_volume(gang, snapshot.pods, snapshot.volume_claims, snapshot.volumes)
    if reason is not None:
        return reason
    if gang.bound:
        return Refusal("NotSimulated", "it has started; when its other pods start is not simulated")
    if gang.topology or not gang.uniform:
        return Refusal("NotSimulated", "gangs with a topology domain or with workers that differ are not simulated")
    explained = Explanations(capacity, "").why_not(gang)
    if explained.reason in ("LargerThanCluster", "NoNodeAllowed", "TooFewNodesAllowed"):
        return explained
    if not capacity.allowed(gang.workers[0])[: len(capacity.fleet.nodes)].any():
        return explained
    return _lacks_other_resources(capacity, gang, explained)


def _lacks_other_resources(capacity: FreeCapacity, gang: Gang, explained: Refusal) -> Refusal | None:
    """That something else than GPUs keeps the gang from starting, by the planner's rules; `explained`: why it waits."""
    for pod in gang.together:
        if capacity.ledger.vector([pod]) is None:
            names = [name for name, _ in pod.requests if name not in capacity.ledger.column]
            return Refusal("Insufficient", f"no node has {', '.join(names)}, which pod {pod.key} asks for")
    need, allowed = len(gang.workers), capacity.allowed(gang.workers[0])
    then = capacity.usable_of(gang, capacity.ledger_without_gpu_pods, allowed) // gang.gpus_per_worker
    if then.sum() < need and explained.reason == "NodesUnusable":
        return explained
    if then.sum() < need:
        text = f"of its {need} workers {int(then.sum())} fit even when all pods with GPUs have ended"
        return Refusal("Insufficient", f"{text}: others hold CPU, memory or the like")
    if explained.reason != "Insufficient":
        return None
    ledger, gpu = capacity.ledger, capacity.ledger.column[capacity.settings.gpu_resource]
    asks = ledger.vector(gang.workers)
    assert asks is not None  # looked at above

    def would_fit(columns: Sequence[int]) -> bool:
        """If the workers asked for these resources only."""
        some = np.where(np.isin(np.arange(len(asks)), columns), asks, 0)
        usable = ledger.usable_groups(some, allowed, capacity.merged(gang))[: len(capacity.fleet.nodes)]
        return bool(capacity.by_partition(usable // gang.gpus_per_worker).max(initial=0) >= need)

    if would_fit([gpu]):
        asked = np.flatnonzero(asks).tolist()
        rest = {one: [other for other in asked if other != one] for one in asked if not would_fit(asked)}
        short = [name for name, one in ledger.column.items() if one in rest and would_fit(rest[one])]
        text = f"GPUs are free, but not enough {' or '.join(short) or 'of other resources'}"
        return Refusal("Insufficient", f"{text}: {explained.message}; only GPUs are simulated")
    return None


def _beyond_gpus(capacity: FreeCapacity, gangs: Sequence[Gang], pods: Sequence[Pod]) -> tuple[str, ...]:
    """Resources of which some pod asks for more of a node than of its GPUs: they may run out before GPUs do.

    Args:
        gangs: Of one pool.
        pods: All of the cluster.
    """
    gpu, ledger, count = capacity.settings.gpu_resource, capacity.ledger, len(capacity.fleet.nodes)
    left = capacity.ledger_without_gpu_pods.free[:count]
    rows = np.any([capacity.allowed(gang.workers[0])[:count] for gang in gangs], axis=0)
    asking = [(gang.workers[0], capacity.allowed(gang.workers[0])[:count]) for gang in gangs]
    there = ((pod, ledger.row.get(pod.node, count)) for pod in pods if pod.units(gpu))
    asking += [(pod, np.arange(count) == row) for pod, row in there if row < count and rows[row]]
    found: set[int] = set()
    for pod, nodes in asking:
        need = ledger.vector([pod])
        if need is not None and nodes.any():
            gpus = ledger.column[gpu]
            more = need * left[nodes][:, [gpus]].astype(float) > left[nodes] * float(need[gpus])
            found |= set(np.flatnonzero(more.any(0)).tolist())
    return tuple(name for name, column in ledger.column.items() if column in found)


def _check(policy: Policy, gangs: Sequence[Gang], capacity: FreeCapacity) -> None:
    spec = policy.spec
    missing = why_not(policy, EnvConfig(), make_params(capacity.fleet.split), compiled=False)
    if missing is not None or spec is None:
        raise UserError(f"--policies: {policy.name} cannot be played here: {missing}")
    order = spec.queue.order
    if policy.requires == HISTORY or spec.queue.preempt or order not in (*SAME_ORDER, "tenants"):
        raise UserError(f"--policies: {policy.name}: should have an order of {', '.join(SAME_ORDER)}, or tenants")
    if order == "tenants" and len({gang.priority for gang in gangs}) > 1:
        raise UserError(f"--policies: {policy.name}: the order tenants is for gangs of one priority")


def _without_times(policy: Policy, gang: Gang, now_s: float, reason: Refusal) -> Forecast:
    return Forecast(policy.name, gang, max(now_s - gang.submit_s, 0.0), None, None, None, reason=reason)


def _of_pool(
    policy: Policy, pool: Pool, starts: Starts, capacity: FreeCapacity, why: Explanations, now_s: float
) -> dict[str, Forecast]:
    said = {}
    for row, gang in enumerate(pool.gangs):
        if gang.key in pool.restricted:
            text = "it may use a part only of the nodes that others wait for; that is not simulated"
            said[gang.key] = _without_times(policy, gang, now_s, Refusal("NotSimulated", text))
        elif not starts.possible[row]:
            text = "it is larger than a partition; gangs that go to several are not simulated"
            said[gang.key] = _without_times(policy, gang, now_s, Refusal("NotSimulated", text))
        else:
            said[gang.key] = _with_times(policy, pool, row, starts, capacity, why, now_s)
    return said


def _with_times(
    policy: Policy, pool: Pool, row: int, starts: Starts, capacity: FreeCapacity, why: Explanations, now_s: float
) -> Forecast:
    gang, own = pool.gangs[row], starts.start_s[:, row]
    low_s, median_s, high_s = (quantile(own, share) for share in (LOW, 0.5, HIGH))
    nodes, behind = (), ()
    if median_s < np.inf:
        draw = int(np.argsort(own, kind="stable")[_place(len(own), 0.5)])
        nodes, behind = _nodes(capacity, starts, draw, row), _behind(pool, starts, draw, row)
    return Forecast(
        policy=policy.name,
        gang=gang,
        waits_s=max(now_s - gang.submit_s, 0.0),
        median_s=median_s,
        low_s=low_s,
        high_s=high_s,
        nodes=nodes,
        behind=behind,
        reason=why.why_not(gang) if low_s == np.inf else None,
    )


def _nodes(capacity: FreeCapacity, starts: Starts, draw: int, row: int) -> tuple[str, ...]:
    fleet = capacity.fleet
    slots = np.flatnonzero(starts.workers[draw, row].reshape(fleet.shape.servers, -1).sum(-1))
    return tuple(fleet.nodes[node].name for node in fleet.rows[starts.partition[draw, row], slots])


def _behind(pool: Pool, starts: Starts, draw: int, row: int) -> tuple[str, ...]:
    start_s = starts.start_s[draw]
    there = np.flatnonzero(starts.partition[draw] == starts.partition[draw, row])
    before = [other for other in there if start_s[other] < start_s[row]]
    return tuple(pool.gangs[other].key for other in sorted(before, key=lambda other: (start_s[other], other)))


def quantile(values: Float64[np.ndarray, "draws"], share: float) -> float:
    """The smallest value that is not below that share of them."""
    return float(np.sort(values)[_place(len(values), share)])


def _place(count: int, share: float) -> int:
    return int(np.clip(np.ceil(share * count - 1e-9) - 1, 0, count - 1))
