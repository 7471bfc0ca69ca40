"""The tables of a run from a cluster, jobs and parameters as the environment takes them, without a JAX program."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool, Float64, Int64

from jaxsched.cluster.hardware import Cluster, distinct_speeds, workers_held
from jaxsched.dynamics.footprint import relative_speed
from jaxsched.dynamics.interference import Interference
from jaxsched.dynamics.sharing import LARGEST
from jaxsched.env.extensions.gpu_sets import usable_groups
from jaxsched.env.extensions.history import BIN_EDGES, GRID, SECONDS, class_counts, classes_of
from jaxsched.env.extensions.parts import Pairs
from jaxsched.env.gpu_choice import tiers
from jaxsched.env.queues import Order
from jaxsched.env.state import EnvConfig
from jaxsched.event_loop._kernel.candidates import WAYS
from jaxsched.event_loop._kernel.ideal import compute_ideal_s
from jaxsched.event_loop._kernel.occupancy import BITS
from jaxsched.event_loop._kernel.records import (
    COUNT,
    DOMAIN,
    GROUP,
    JOB,
    LEARNED,
    MODEL,
    NEWS,
    NEXT_CHANGE,
    ON_GROUP,
    ON_WIRE,
    PARTITION,
    PLACE,
    RACK,
    RECORD,
    ROOMY,
    RUNNING,
    SERVICE,
    SHARE,
    SITE_GROUP,
    SITE_SERVER,
    SLOT,
    START,
    TENANT,
    WIRE,
    Kept,
    Known,
    Past,
    Records,
    Scratch,
    SharedGPUs,
    Sharing,
    Site,
    Tables,
    World,
)
from jaxsched.semantics import ANCHORS, SEEK_INPUTS, SERVICE_BINS
from jaxsched.workload.jobs import MILLI, NEVER, WHOLE, JobTable
from jaxsched.workload.models import Profiles


def fill_table(dtype: np.dtype, columns: Mapping[str, ArrayLike]) -> Records:
    """A table of records from its columns, all of one shape."""
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    out = np.zeros(next(iter(arrays.values())).shape, dtype)
    for name, column in arrays.items():
        out[name] = column
    return out


def build_site(cluster: Cluster, gpu_sets: Sequence[str] = ()) -> Site:
    """The cluster, of which jobs may use these sets of GPU types (`EnvConfig.gpu_sets`)."""
    p, n, k = cluster.shape
    groups = {"gpus": cluster.group_gpus, "cores": cluster.group_cores, "pcie_bytes_s": cluster.pcie_bytes_s}
    rack = np.asarray(cluster.server_rack)
    block = np.take_along_axis(np.asarray(cluster.domain_block), rack, 1) if cluster.domain_block.size else 0 * rack
    servers = {"qpi_bytes_s": cluster.qpi_bytes_s, "nic_bytes_s": cluster.nic_bytes_s, "rack": rack, "block": block}
    links, link_id = np.asarray(cluster.link_bytes_s, np.float64), np.asarray(cluster.link_id, np.int64)
    pairs = np.stack([link_id.reshape(-1), np.arange(p).repeat(link_id.shape[1])], -1)
    pairs, places = np.unique(pairs, axis=0, return_index=True)
    pairs, places = pairs[pairs[:, 0] < len(links) - 1], places[pairs[:, 0] < len(links) - 1]  # but for the dummy
    path, path_share = (np.asarray(leaf).view() for leaf in (cluster.path, cluster.path_share))  # large, so not copied
    path.flags.writeable = path_share.flags.writeable = False
    return Site(
        groups=fill_table(SITE_GROUP, groups).reshape(p, n * k),
        servers=fill_table(SITE_SERVER, servers),
        links=links,
        link_id=link_id,
        path=path,
        path_share=path_share,
        uneven=np.asarray(cluster.uneven, np.int64).sum(1),
        reach_first=np.searchsorted(pairs[:, 0], np.arange(len(links) + 1)),
        reach=pairs[:, 1].copy(),
        reach_row=p * n * k + 2 * p * n + places,
        partition_gpus=np.asarray(cluster.group_gpus, np.int64).sum((1, 2)),
        group_tier=_build_group_tiers(cluster),
        group_gpus=np.asarray(cluster.group_gpus, np.int64).reshape(p, n * k),
        largest=_find_largest(cluster),
        reservable=np.asarray(cluster.reservable, np.int64),
        usable=_usable(cluster, gpu_sets).reshape(-1, p, n * k).astype(np.int8),
    )


def _find_largest(cluster: Cluster) -> Int64[np.ndarray, "P 2"]:
    """GPUs of the largest group and rack of each partition."""
    gpus, rack = np.asarray(cluster.group_gpus, np.int64), np.asarray(cluster.server_rack)
    of_rack = [np.bincount(of, weights).max() for of, weights in zip(rack, gpus.sum(2))]
    return np.stack([gpus.max((1, 2)), np.asarray(of_rack, np.int64)], 1)


def _usable(cluster: Cluster, gpu_sets: Sequence[str]) -> Bool[np.ndarray, "A P N K"]:
    """The groups of each set; without sets, all."""
    return np.asarray(usable_groups(cluster, gpu_sets)) if gpu_sets else np.ones((1, *cluster.shape), bool)


def build_models(profiles: Profiles) -> Records:
    """MODEL[models]: the catalogue."""
    return fill_table(MODEL, {name: getattr(profiles, name) for name in MODEL.names or ()})


def build_jobs(cluster: Cluster, profiles: Profiles, jobs: JobTable, order: Order, config: EnvConfig) -> Records:
    """JOB[J]. Keys as of `env.queues.order_keys`, ties by row; without shared GPUs fractions are whole GPUs."""
    estimate, wide = np.asarray(jobs.estimate_s), np.asarray(jobs.gpus_per_worker)
    milli = np.asarray(jobs.milli) if config.shared_gpus and np.size(jobs.milli) else WHOLE
    size, share = np.where(milli < WHOLE, -milli, wide), np.asarray(milli * np.float32(MILLI), np.float32)
    area = (np.asarray(jobs.workers) * wide).astype(np.float32) * share * estimate
    compute_s, comm_s = compute_ideal_s(cluster, profiles, jobs)
    same = ("arrival", "duration_s", "estimate_s", "workers", "ps", "model", "tenant")
    columns = {name: getattr(jobs, name) for name in same}
    return fill_table(
        JOB,
        columns
        | {
            "wide": wide,
            "size": size,
            "share": share,
            "ideal_s": compute_s + comm_s,
            "ideal_comm_s": comm_s,
            "key": estimate if order == "sjf" else area if order == "area" else np.zeros_like(estimate),
            "area": area,
            "home": find_homes(cluster, jobs, config.gpu_sets),
            "allowed": _sets_of(jobs),
            "cpu": _asks_of(jobs)[0],
            "memory": _asks_of(jobs)[1],
        },
    )


def build_tables(w: World, record: bool, starts: int = 0) -> Tables:
    """An empty cluster before boundary 0; `record`: with placements; `starts`: rows of the log."""
    (p, nk), n = w.site.groups.shape, w.site.servers.shape[1]
    r, jobs = w.running_slots, len(w.jobs)
    passed = (w.stops.changes[:, :, 0] <= 0).astype(np.int64)  # some are out from 0 on
    numbers = np.zeros(COUNT, np.int64)
    numbers[LEARNED] = numbers[NEWS] = -1
    numbers[NEXT_CHANGE] = np.take_along_axis(w.stops.changes, passed[..., None], -1).min(initial=NEVER)
    free = w.site.groups["gpus"] * (1 - passed).repeat(nk // n, 1)
    some = w.jobs[w.jobs["home"] >= 0]
    gang, widest = int(min(some["workers"].max(initial=1), nk)), int(some["wide"].max(initial=1))
    running = np.zeros((p, r), RUNNING)
    running["slot"] = np.arange(r)
    partitions = np.zeros(p, PARTITION)
    partitions["free_gpus"] = free.sum(-1)
    partitions["next_finish_s"] = partitions["next_early_s"] = np.inf
    partitions["gang"] = -1
    on_group, on_wire = np.zeros((p, nk), ON_GROUP), np.zeros(p * 2 * n + len(w.site.links), ON_WIRE)
    wires = 2 * min(gang, n) + w.site.link_id.shape[1]
    records = np.zeros(jobs, RECORD)
    records["start"] = records["partition"] = records["gpu"] = -1
    records["finish_s"] = np.nan
    service = np.zeros(jobs, SERVICE)
    service["left_s"] = w.jobs["duration_s"]
    return Tables(
        scratch=_build_scratch(w, gang, wires),
        numbers=numbers,
        now_s=np.zeros(1),
        free=free,
        spare=w.site.reservable.copy(),
        fits=np.full((p, len(w.site.usable) * (widest + 1)), -1),
        most=np.full((p, len(w.site.usable) * (widest + 1), n), -1),
        most_empty=_count_empty(w, widest),
        queue=np.zeros((p, w.queue_slots), np.int64),
        partitions=partitions,
        running=running,
        slots=np.zeros((p, r), SLOT),
        groups=np.zeros((p, r, gang), GROUP),
        wires=np.zeros((p, r, wires), WIRE),
        on_group=on_group,
        on_wire=on_wire,
        users=np.zeros((p * nk + p * 2 * n + w.site.link_id.size, r // BITS + 1), np.int64),
        affected=np.zeros((p, r // BITS + 1), np.int64),
        inside=np.zeros((p, r // BITS + 1), np.int64),
        tenants=np.zeros(w.tenants, TENANT),
        service=service,
        stops=np.zeros((p, r), np.int8),
        records=records,
        placement=np.zeros((jobs, nk) if record else (0, 0), np.int8),
        starts=np.zeros(starts, START),
        start_workers=np.zeros((starts, nk), np.int8),
        shared=_build_shared_gpus(w),
        passed=passed,
        known=build_nothing_known(w.tenants, len(w.models)),
        kept=_build_kept(w),
    )


def _build_kept(w: World) -> Kept:
    """Room for what a partition has now."""
    nk, n, r = w.site.groups.shape[1], w.site.servers.shape[1], np.zeros(w.running_slots)
    wires = np.zeros(2 * n + w.site.link_id.shape[1], ON_WIRE)
    return Kept(np.zeros(nk, np.int64), np.zeros(nk, ON_GROUP), wires, r, r.copy(), np.zeros(n))


def _build_scratch(w: World, gang: int, wires: int) -> Scratch:
    """Room for gangs of so many workers, whose footprints have so many wires at most."""
    nk, n, t, r = w.site.groups.shape[1], w.site.servers.shape[1], w.site.path.shape[1], w.running_slots
    return Scratch(
        place=np.zeros(nk, PLACE),
        first=np.zeros(nk, np.int64),
        taken=np.zeros(nk, np.int64),
        fits_server=np.zeros(n, np.int64),
        roomy=np.zeros(n, ROOMY),
        racks=np.zeros(t, RACK),
        domains=np.zeros(nk, DOMAIN),
        shares=np.zeros(nk, SHARE),
        sent=np.zeros(w.site.link_id.shape[1]),
        crossed=np.zeros(w.site.link_id.shape[1], np.int64),
        left_s=np.zeros(r),
        end_s=np.zeros(r),
        exit_s=np.zeros(n),
        inputs=np.zeros(SEEK_INPUTS),
        anchors=np.zeros(2 * ANCHORS, np.int64),
        tried=np.zeros((2 * ANCHORS * len(WAYS), 1 + nk), np.int64),
        level=np.zeros(r, np.int64),
        most_without=np.zeros(n, np.int64),
        without=np.zeros(nk, np.int64),
        spare=np.zeros((n, 2), np.int64),
        roomiest=np.zeros(n, np.int64),
        hidden=np.zeros(nk, np.int64),
        kept_groups=np.zeros(gang, ON_GROUP),
        kept_wires=np.zeros(wires, ON_WIRE),
    )


def _build_shared_gpus(w: World) -> SharedGPUs:
    """Nobody shares a GPU."""
    (p, nk), s, pairs = w.site.groups.shape, w.shared_gpus, w.sharing.factors.shape
    return SharedGPUs(
        used=np.zeros((p, nk, s), np.int64),
        first=np.full((p, nk, s), -1),
        room=np.zeros((p, nk), np.int64),
        hidden=np.zeros(nk, np.int64),
        without=np.zeros((nk, s), np.int64),
        sums=np.zeros(w.sharing.pressure.shape[-1]),
        rate=np.zeros(w.running_slots),
        believed=w.sharing.factors.copy() if w.sharing.known else np.ones(pairs),
        seen_s=np.zeros(pairs),
        seen=np.zeros(pairs),
    )


def build_sharing(cluster: Cluster, interference: Interference, pairs: Pairs | None, observed: bool) -> Sharing:
    """The law of jobs that share a GPU. `pairs`: factors of models beside it; `observed`: the policy learns them."""
    table, kind = interference.sharing, np.asarray(cluster.group_gpu_type, np.int64).reshape(cluster.shape[0], -1)
    known: dict[str, Any] = dict(
        factors=np.ones((0, 0)) if pairs is None else np.asarray(pairs.factor, np.float64),
        known=pairs is not None and pairs.known,
        observed=pairs is not None and observed and not pairs.known,
    )
    if table is None:
        none = np.zeros((0, 0, 0, 0))
        return Sharing(np.full_like(kind, -1), none, none, none, np.zeros((0, 0, 0)), np.zeros((0, 0)), **known)
    covered = np.asarray(table.covered)
    inside = (kind >= 0) & (kind < len(covered))
    mix, gate, bias, gain = (
        np.asarray(getattr(table.laws, name), np.float64) for name in ("mix", "gate", "bias", "gain")
    )
    sensitivity = np.clip(np.nan_to_num(np.asarray(table.sensitivity, np.float64)), -LARGEST, LARGEST)
    pressure = np.clip(np.nan_to_num(np.asarray(table.pressure, np.float64)), 0.0, LARGEST)
    stands = np.einsum("atmc,ach->atmh", sensitivity, gate) + bias[:, None, None]
    return Sharing(
        kind=np.where(inside & covered[np.where(inside, kind, 0)], kind, -1),
        pressure=pressure,
        reach=np.logaddexp(sensitivity, 0.0),
        stands=np.ascontiguousarray(np.clip(stands, -LARGEST, LARGEST)),
        mix=np.logaddexp(mix, 0.0),
        gain=np.logaddexp(gain, 0.0),
        **known,
    )


def _count_empty(w: World, widest: int) -> Int64[np.ndarray, "P A*G N"]:
    """Workers of 0, 1, ... GPUs that fit the 1, 2, ... roomiest servers of empty partitions, for each set."""
    (p, nk), n = w.site.groups.shape, w.site.servers.shape[1]
    sizes, gpus = np.maximum(np.arange(widest + 1), 1), w.site.groups["gpus"] * w.site.usable.astype(np.int64)
    fits = (gpus.swapaxes(0, 1).reshape(p, -1, 1, n, nk // n) // sizes[:, None, None]).sum(-1).reshape(p, -1, n)
    return np.cumsum(-np.sort(-fits, axis=-1), axis=-1)


def find_homes(cluster: Cluster, jobs: JobTable, gpu_sets: Sequence[str] = ()) -> Int64[np.ndarray, "J"]:
    """As `env.state.assign_homes`: the next partition from the job's own on that could hold it, -1 if there is none."""
    gpus = _usable(cluster, gpu_sets) * np.asarray(cluster.group_gpus)
    kinds = np.stack([_sets_of(jobs), np.asarray(jobs.gpus_per_worker), *_asks_of(jobs)], -1)
    held, kind = workers_held(gpus, np.asarray(cluster.reservable), kinds)
    fits = held[kind] >= np.asarray(jobs.workers)[:, None]
    p = fits.shape[1]
    real = np.flatnonzero((np.asarray(cluster.server_id) >= 0).any(-1)).max(initial=0) + 1
    first = np.asarray(jobs.home, np.int64) % real
    distance = np.where(fits, (np.arange(p) - first[:, None]) % p, p)
    return np.where(fits.any(-1), distance.argmin(-1), -1)


def _sets_of(jobs: JobTable) -> Int64[np.ndarray, "J"]:
    """The set of GPU types that each job may use."""
    allowed = np.asarray(jobs.allowed, np.int64)
    return allowed if len(allowed) else np.zeros(jobs.arrival.shape[-1], np.int64)


def _asks_of(jobs: JobTable) -> Int64[np.ndarray, "2 J"]:
    """What each worker of each job reserves."""
    asks = np.asarray(jobs.asks, np.int64)
    return asks if asks.size else np.zeros((2, jobs.arrival.shape[-1]), np.int64)


def build_speeds(cluster: Cluster, profiles: Profiles) -> Float64[np.ndarray, "models P NK"]:
    """How fast each model runs on each group, over the cluster's reference type."""
    if distinct_speeds(cluster) == 1:
        return np.ones((profiles.compute_s.shape[0], cluster.shape[0], cluster.shape[1] * cluster.shape[2]))
    model = jnp.arange(profiles.compute_s.shape[0])[:, None, None, None]
    speed = relative_speed(profiles, model, cluster.group_gpu_type, cluster.group_speed, cluster.reference)
    return np.asarray(speed, np.float64).reshape(len(model), cluster.shape[0], -1)


def build_tier_speeds(
    cluster: Cluster, profiles: Profiles, gpu_sets: Sequence[str] = ()
) -> Float64[np.ndarray, "A models tiers"]:
    """How fast models run on the GPUs of each tier, fastest first; 0 where a set has none."""
    count, models, sets = distinct_speeds(cluster), profiles.compute_s.shape[0], len(gpu_sets) or 1
    if count == 1:
        return np.ones((sets, models, 1))
    every, _ = tiers(cluster, count)
    model, found = jnp.arange(models)[:, None], np.zeros((sets, models, count))
    for speeds, usable in zip(found, _usable(cluster, gpu_sets)):
        tier, kind = tiers(cluster.replace(group_gpus=np.where(usable, cluster.group_gpus, 0)), count)
        own = np.asarray(tier) > 0
        tier, kind = np.asarray(tier)[own], np.asarray(kind)[own]
        at = np.searchsorted(-np.asarray(every), -tier)
        fast = relative_speed(profiles, model, kind, tier, cluster.reference)
        speeds[:, at] = np.asarray(fast, np.float64)
    return found


def _build_group_tiers(cluster: Cluster) -> Int64[np.ndarray, "P NK"]:
    """How many speeds of GPUs are above each group's."""
    count = distinct_speeds(cluster)
    if count == 1:
        return np.zeros((cluster.shape[0], cluster.shape[1] * cluster.shape[2]), np.int64)
    tier, _ = tiers(cluster, count)
    above = (np.asarray(tier) > np.asarray(cluster.group_speed)[..., None]).sum(-1)
    return above.reshape(cluster.shape[0], -1).astype(np.int64)


def build_past(jobs: JobTable, share: Float64[np.ndarray, "J"], tenants: int, models: int) -> Past:
    """What jobs will add, of which each has that share of its GPUs."""
    run_s, gpus = np.asarray(jobs.duration_s), (np.asarray(jobs.workers) * np.asarray(jobs.gpus_per_worker))
    columns = {name: np.asarray(getattr(jobs, name)) for name in ("workers", "gpus_per_worker", "tenant", "model")}
    rows = np.arange(len(gpus))
    classes: Any = classes_of(jobs.replace(**columns), rows, tenants, models)  # pyright: ignore (of NumPy's arrays)
    return Past(
        classes=np.stack(classes, -1).astype(np.int64),
        steps=np.searchsorted(GRID, run_s, side="right"),
        bin=np.searchsorted(BIN_EDGES, run_s * (gpus.astype(np.float32) * share.astype(np.float32)), side="right"),
        grid=GRID,
        seconds=SECONDS,
    )


def build_no_past() -> Past:
    """Where policies do not know it."""
    none = np.zeros(0, np.int64)
    return Past(classes=np.zeros((0, 0), np.int64), steps=none, bin=none, grid=GRID, seconds=SECONDS)


def build_nothing_known(tenants: int, models: int) -> Known:
    """Before the first job has finished."""
    classes, bins = sum(class_counts(tenants, models)), np.zeros(SERVICE_BINS, np.int64)
    return Known(np.zeros(classes, np.int64), np.zeros(classes, np.int64), bins, bins.copy())
