"""From pods and nodes to the simulator's arrays: pending gangs become queues, running pods the Running state.

So the same observation is made of a live cluster as of a simulated one, and any registered policy acts on it.
"""

import dataclasses
import zlib
from collections.abc import Iterable, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsched.cluster.hardware import partition_axes
from jaxsched.dynamics.speed import JobSpec, best_hardware, footprint
from jaxsched.env.environment import initial_state
from jaxsched.env.state import EnvConfig, EnvParams, State
from jaxsched.env.transition import refresh
from jaxsched.kube.planning.fleet import Fleet
from jaxsched.kube.planning.gangs import Gang, gang_key, profile_of
from jaxsched.kube.planning.ledger import Ledger
from jaxsched.kube.planning.objects import DONE_PHASES, Pod
from jaxsched.kube.planning.settings import PlanSettings
from jaxsched.pytree import Pytree
from jaxsched.workload.jobs import NEVER, JobTable

LEAST_LEFT = 0.05  # of a running gang's stated duration that is taken to be left once it has run longer than that
RESERVED = 4  # one running slot in so many is kept for gangs that a plan starts


@dataclasses.dataclass(frozen=True)
class Piece:
    """The part of a running gang that lies in one partition."""

    partition: int
    workers: np.ndarray  # int[N, K]
    gpus_per_worker: int
    gpus: int
    model: int
    duration_s: float
    elapsed_s: float
    namespace: str


class Inputs(Pytree):
    """Host arrays for `to_state`; Q and R as in the environment, J = P (Q + R) rows: pending gangs, then running."""

    jobs: JobTable
    queue: np.ndarray  # int32[P, Q]
    running_row: np.ndarray  # int32[P, R], -1 = free slot
    running_workers: np.ndarray  # int8[P, R, N, K]
    remaining_s: np.ndarray  # float32[P, R]
    attained_s: np.ndarray  # float32[V]


def pieces(fleet: Fleet, ledger: Ledger, pods: Iterable[Pod], settings: PlanSettings, now_s: float) -> list[Piece]:
    """The running gangs, of all schedulers, by partition, in the split view. Pods of unknown gangs stand alone.

    All-reduce depends on where the GPUs are, not on how pods share them: a worker here is one GPU.
    """
    gangs: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.node in ledger.row and pod.phase not in DONE_PHASES and pod.units(settings.gpu_resource):
            gangs.setdefault(gang_key(pod), []).append(pod)
    found = []
    for members in gangs.values():
        model, duration = profile_of(members, settings)
        began = min(pod.started_s or pod.created_s for pod in members)
        parts: dict[int, np.ndarray] = {}
        for pod in members:
            row, taken = ledger.reserved[pod.uid]
            partition, slot = fleet.place[row]
            shape = (fleet.shape.servers, fleet.shape.groups)
            parts.setdefault(int(partition), np.zeros(shape, np.int64))[slot] += taken
        for partition, workers in parts.items():
            found.append(
                Piece(
                    partition=partition,
                    workers=np.minimum(workers, 127),
                    gpus_per_worker=1,
                    gpus=int(workers.sum()),
                    model=model,
                    duration_s=duration,
                    elapsed_s=max(now_s - began, 0.0),
                    namespace=members[0].namespace,
                )
            )
    return [piece for piece in found if piece.gpus]


def merged_workers(workers: np.ndarray) -> np.ndarray:
    """int[N, K]: the same workers in the merged view, all in group 0 of their node."""
    merged = np.zeros_like(workers)
    merged[:, 0] = np.minimum(workers.sum(1), 127)
    return merged


def build_inputs(
    fleet: Fleet,
    settings: PlanSettings,
    queues: Sequence[Sequence[Gang]],
    running: Sequence[Piece],
    namespaces: dict[str, int],
    merged: bool,
    now_s: float,
) -> tuple[Inputs, list[Gang]]:
    """The arrays, and the gangs of the first rows of the job table.

    Args: `queues`: pending gangs of each partition, at most `queue_slots`; `namespaces`: index of each, 0..V-1.
    """
    p, q, r = fleet.shape.partitions, settings.queue_slots, settings.running_slots
    rows = sorted((gang for queue in queues for gang in queue), key=lambda gang: (gang.submit_s, gang.key))
    index = {gang.key: row for row, gang in enumerate(rows)}
    size = p * (q + r)
    columns = {
        name: np.zeros(size, np.int32) for name in ("workers", "gpus_per_worker", "ps", "model", "tenant", "home")
    }
    columns["arrival"] = np.full(size, NEVER, np.int32)
    times = {"lead_s": np.zeros(size, np.float32), "duration_s": np.ones(size, np.float32)}
    times["estimate_s"] = times["duration_s"]  # nothing is known here but estimates
    columns["workers"][:], columns["gpus_per_worker"][:] = 1, 1

    def fill(row: int, age_s: float, duration_s: float, namespace: str, **values: int) -> None:
        intervals = int(min(age_s / settings.interval_s, 2**30))
        columns["arrival"][row] = -intervals
        times["lead_s"][row] = min(max(age_s - intervals * settings.interval_s, 0.0), settings.interval_s * 0.999)
        times["duration_s"][row] = duration_s
        columns["tenant"][row] = namespaces[namespace]
        for name, value in values.items():
            columns[name][row] = value

    for row, gang in enumerate(rows):
        fill(
            row,
            max(now_s - gang.submit_s, 0.0),
            gang.duration_s,
            gang.namespace,
            workers=len(gang.workers),
            gpus_per_worker=gang.gpus_per_worker,
            ps=len(gang.ps),
            model=gang.model,
        )
    queue = np.full((p, q), -1, np.int32)
    for partition, gangs in enumerate(queues):
        queue[partition, : len(gangs)] = [index[gang.key] for gang in gangs]

    shape = (p, r, fleet.shape.servers, fleet.shape.groups)
    running_row, workers = np.full((p, r), -1, np.int32), np.zeros(shape, np.int8)
    remaining = np.zeros((p, r), np.float32)
    attained = np.zeros(settings.tenants, np.float32)
    filled, row = [0] * p, p * q
    for piece in sorted(running, key=lambda piece: -piece.gpus):
        attained[namespaces[piece.namespace]] += piece.gpus * piece.elapsed_s
        slot = filled[piece.partition]
        if slot >= r - max(1, r // RESERVED):
            continue  # the smallest ones are seen as taken GPUs only
        fill(row, piece.elapsed_s, piece.duration_s, piece.namespace, workers=piece.gpus, model=piece.model)
        running_row[piece.partition, slot] = row
        workers[piece.partition, slot] = merged_workers(piece.workers) if merged else piece.workers
        remaining[piece.partition, slot] = max(piece.duration_s - piece.elapsed_s, LEAST_LEFT * piece.duration_s)
        filled[piece.partition] += 1
        row += 1
    inputs = Inputs(
        jobs=JobTable(**columns, **times),
        queue=queue,
        running_row=running_row,
        running_workers=workers,
        remaining_s=remaining,
        attained_s=attained,
    )
    return inputs, rows


def blank_state(config: EnvConfig, params: EnvParams, settings: PlanSettings) -> State:
    """An empty cluster with a job table of P (Q + R) rows that never arrive."""
    size = params.cluster.group_gpus.shape[0] * (settings.queue_slots + settings.running_slots)
    zeros = np.zeros(size, np.int32)
    ones = np.ones(size, np.int32)
    jobs = JobTable(
        arrival=jnp.full(size, NEVER, jnp.int32),
        lead_s=jnp.zeros(size, jnp.float32),
        duration_s=jnp.ones(size, jnp.float32),
        estimate_s=jnp.ones(size, jnp.float32),
        workers=ones,
        gpus_per_worker=ones,
        ps=zeros,
        model=zeros,
        tenant=zeros,
        home=zeros,
    )
    return initial_state(config, params, jax.tree.map(jnp.asarray, jobs))


def to_state(config: EnvConfig, params: EnvParams, blank: State, inputs: Inputs) -> State:
    """The environment's state of a live cluster; jit-able. GPUs (`free`) are put in with every decision."""
    jobs = jax.tree.map(jnp.asarray, inputs.jobs)
    row = jnp.maximum(inputs.running_row, 0)
    spec = JobSpec(
        workers=jobs.workers[row],
        gpus_per_worker=jobs.gpus_per_worker[row],
        ps=jnp.zeros_like(row),
        model=jobs.model[row],
    )
    workers = jnp.asarray(inputs.running_workers)
    best = best_hardware(params.cluster)
    of_partition = jax.vmap(footprint, in_axes=(None, None, None, 0, 0, 0), out_axes=-1)
    prints = jax.vmap(of_partition, in_axes=(partition_axes(params.cluster), None, None, 0, 0, 0))(
        params.cluster, best, params.profiles, spec, workers.astype(jnp.int32), jnp.zeros(workers.shape, jnp.int32)
    )
    running = blank.running.replace(
        job=jnp.asarray(inputs.running_row),
        workers=workers,
        gpus_per_worker=spec.gpus_per_worker,
        duration_s=jobs.duration_s[row],
        remaining_s=jnp.asarray(inputs.remaining_s),
        print=prints,
    )
    state = blank.replace(
        jobs=jobs, queue=jnp.asarray(inputs.queue), running=running, attained_s=jnp.asarray(inputs.attained_s)
    )
    return refresh(config, params, state)


def home_of(key: str, partitions: int) -> int:
    """The partition that a gang goes to first: the same after every restart."""
    return zlib.crc32(key.encode()) % partitions


def tenants_of(names: Iterable[str], count: int) -> dict[str, int]:
    """Index of each namespace, alphabetically; the last index stands for all that are too many."""
    return {name: min(index, count - 1) for index, name in enumerate(sorted(set(names)))}


def on_cluster(fleet: Fleet, by_node: np.ndarray) -> np.ndarray:
    """int32[P, N, K] from int[S, K]."""
    spread = np.zeros((fleet.shape.partitions, fleet.shape.servers, fleet.shape.groups), np.int32)
    spread[fleet.place[:, 0], fleet.place[:, 1]] = by_node
    return spread


def all_finite(tree: chex.ArrayTree) -> Array:
    """bool: no floating leaf holds NaN or an infinity."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()
