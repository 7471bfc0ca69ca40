"""A run of the compiled event loop on the arguments that the environment takes."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from jaxsched.cluster.hardware import distinct_speeds
from jaxsched.dynamics import interference
from jaxsched.env import levels
from jaxsched.env.extensions.parts import Pairs
from jaxsched.env.knowledge import HISTORY, NOTHING
from jaxsched.env.levels import LevelTable
from jaxsched.env.state import EnvConfig, EnvParams
from jaxsched.event_loop._kernel.build import (
    build_jobs,
    build_models,
    build_no_past,
    build_past,
    build_sharing,
    build_site,
    build_speeds,
    build_tables,
    build_tier_speeds,
    fill_table,
)
from jaxsched.event_loop._kernel.events import play
from jaxsched.event_loop._kernel.ideal import build_plans
from jaxsched.event_loop._kernel.jit import with_rows, write
from jaxsched.event_loop._kernel.openings import STAY, TO_ANY, TO_IDLE
from jaxsched.event_loop._kernel.queues import TABLE
from jaxsched.event_loop._kernel.records import (
    BOUNDARY,
    BY_AREA,
    BY_RUN_TIME,
    FINISHED,
    LAW,
    NEXT_JOB,
    PEAK_QUEUE,
    PEAK_RUNNING,
    ROUNDS,
    START,
    STARTED,
    Records,
    Rule,
    Stops,
    Tables,
    World,
    is_simple_world,
)
from jaxsched.event_loop.coverage import POLICIES, why_not
from jaxsched.policies import spec
from jaxsched.policies.policy import Policy
from jaxsched.policies.spec import MATCH, WAITING, PolicySpec, SeekWeights
from jaxsched.semantics import RUN_BINS, WIDTH_CLASSES
from jaxsched.workload.jobs import NEVER, JobTable

WHOLE_RUN = 2**30  # rounds
_FORWARDS = {spec.STAY: STAY, spec.TO_IDLE: TO_IDLE, spec.TO_ANY: TO_ANY}


class Run:
    """One job list under one rule, from an empty cluster on; what has happened so far is in `tables`."""

    def __init__(
        self,
        config: EnvConfig,
        params: EnvParams,
        jobs: JobTable,
        policy: Policy,
        interval_s: float,
        *,
        in_python: bool = False,
        pairs: Pairs | None = None,
        simple: bool = False,
    ) -> None:
        """As `env.environment.initial_state`; the slots of `config` limit queues and running jobs.

        Args:
            pairs: Factors of models that share a GPU, of which nothing is seen; None: all are 1.
            interval_s: that of `params`, which is a 32-bit float: boundaries here are absolute times.
            in_python: Not as machine code: about a thousandth as fast, and nothing is compiled; the same results.
            simple: All policies that are played are, see `coverage.is_simple`: less is compiled.
        """
        assert why_not(policy, config, params, compiled=not in_python) is None and policy.spec is not None
        assert min(config.rounds, config.queue_slots, config.running_slots) >= 1
        cluster, of, queue = params.cluster, policy.spec, policy.spec.queue
        assert isinstance(of.rule, str) and not callable(queue.order)
        models, history = build_models(params.profiles), config.knows == HISTORY
        rows, unlike = build_jobs(cluster, params.profiles, jobs, queue.order, config), distinct_speeds(cluster) > 1
        self.world = World(
            site=build_site(cluster, config.gpu_sets),
            models=models,
            plans=build_plans(params.profiles.plans),
            speed=build_speeds(cluster, params.profiles),
            tier_speed=build_tier_speeds(cluster, params.profiles, config.gpu_sets),
            masks=unlike or config.asks or len(config.gpu_sets) > 0 or queue.racks,
            asks=config.asks,
            waits=unlike and config.knows != NOTHING,
            jobs=rows,
            law=_build_law(params),
            interval_s=float(interval_s),
            rounds=config.rounds,
            max_forwards=int(params.max_forwards),
            queue_slots=config.queue_slots,
            running_slots=config.running_slots,
            horizon=int(params.horizon),
            rule=_build_rule(of, params, unlike),
            stops=_build_stops(params),
            history=history,
            past=build_past(jobs, rows["share"], config.tenants, len(models)) if history else build_no_past(),
            shared_gpus=config.shared_gpus,
            sharing=build_sharing(cluster, params.interference, pairs, of.observe),
            tenants=config.tenants,
        )
        self._log_rows = config.rounds * len(self.world.site.groups) + len(self.world.jobs) if config.starts else 0
        self.tables: Tables = build_tables(self.world, config.record_placements, self._log_rows)
        self._rows = (with_rows(self.world), with_rows(self.tables)) if in_python else None
        self.simple = simple and is_simple_world(self.world)

    def restart(self, policy: Policy | None = None) -> None:
        """Begin anew, as machine code; under a policy that may differ in a table of levels or numbers of seeking."""
        if policy is not None:
            assert policy.spec is not None
            order, seek = policy.spec.queue.order, policy.spec.seek
            if isinstance(order, LevelTable):
                assert self.world.rule.order == TABLE
                self.world = self._with_rule(level_table=_level_table(order), margin=order.margin)
            if seek is not None:
                assert len(self.world.rule.seek) > 0
                self.world = self._with_rule(seek=_read_seek_numbers(seek))
        self.tables, self._rows = build_tables(self.world, len(self.tables.placement) > 0, self._log_rows), None

    def _with_rule(self, **changes: Any) -> World:
        return self.world._replace(rule=self.world.rule._replace(**changes))

    def go_on(self, rounds: int = WHOLE_RUN) -> bool:
        """Play at least so many rounds; True at the end: all jobs have finished, or the horizon is reached."""
        until = self.rounds + rounds
        while not self._play(until - self.rounds):
            if self.rounds >= until:
                return False
            self._lengthen_log()
        return True

    def _play(self, rounds: int) -> bool:
        if self._rows is None:
            return _play_compiled(self.world, self.tables, rounds, simple=self.simple)
        with self.in_rows() as rows:
            return play(*rows, rounds)

    def _lengthen_log(self) -> None:
        starts, workers = self.tables.starts, self.tables.start_workers
        starts, workers = (np.concatenate([table, np.zeros_like(table)]) for table in (starts, workers))
        self.tables = self.tables._replace(starts=starts, start_workers=workers)
        if self._rows is not None:
            self._rows = self._rows[0], with_rows(self.tables)

    @contextlib.contextmanager
    def in_rows(self) -> Iterator[tuple[Any, Any]]:
        """World and tables for Python, which may write into them."""
        rows = self._rows or (with_rows(self.world), with_rows(self.tables))
        with np.errstate(all="ignore"):
            yield rows
        write(rows[1])

    @property
    def home(self) -> Int64[np.ndarray, "J"]:
        """The partition where each job is queued first, -1 = rejected."""
        return self.world.jobs["home"]

    @property
    def arrived(self) -> int:
        """Jobs, rejected ones included."""
        return int(self.tables.numbers[NEXT_JOB])

    @property
    def finished(self) -> int:
        """Jobs."""
        return int(self.tables.numbers[FINISHED])

    @property
    def log(self) -> dict[str, np.ndarray] | None:
        """Columns of all starts, as of `env.extensions.starts.Starts`; None if they are not logged."""
        if not self._log_rows:
            return None
        count = int(self.tables.numbers[STARTED])
        starts = self.tables.starts[:count]
        names = [name for name in START.names or () if name != "gpu" or self.world.shared_gpus]
        return {name: starts[name] for name in names} | {"workers": self.tables.start_workers[:count]}

    @property
    def queued(self) -> Int64[np.ndarray, "queued"]:
        """Jobs that are in queues."""
        pairs = zip(self.tables.queue, self.tables.partitions["queued"])
        return np.concatenate([queue[:count] for queue, count in pairs])

    @property
    def boundary(self) -> int:
        """How far the run is."""
        return int(self.tables.numbers[BOUNDARY])

    @property
    def simulated_s(self) -> float:
        """How far the run is in seconds; the last finish, once all jobs have finished."""
        if self.finished + int((self.home < 0).sum()) < len(self.home):
            return self.boundary * self.world.interval_s
        return float(np.nanmax(self.tables.records["finish_s"], initial=0.0))

    @property
    def rounds(self) -> int:
        """Decision rounds."""
        return int(self.tables.numbers[ROUNDS])

    @property
    def peak_running(self) -> int:
        """Most jobs that ran at once in a partition."""
        return int(self.tables.numbers[PEAK_RUNNING])

    @property
    def peak_queue(self) -> int:
        """The longest queue of a partition."""
        return int(self.tables.numbers[PEAK_QUEUE])


def play_to_end(world: World, tables: Tables, *, in_python: bool = False) -> None:
    """Play on until every job has finished, or to the horizon. There must be no log of starts."""
    if in_python:
        rows = with_rows(world), with_rows(tables)
        with np.errstate(all="ignore"):
            play(*rows, WHOLE_RUN)
        write(rows[1])
    else:
        _play_compiled(world, tables, WHOLE_RUN)


def _play_compiled(world: World, tables: Tables, rounds: int, *, simple: bool = False) -> bool:
    from jaxsched.event_loop._kernel.machine_code import machine_code  # needs Numba

    return machine_code(play, simple=simple)(world, tables, rounds)


def copy_tables(tables: Tables) -> Tables:
    """The same state, to be played on by itself."""
    return _copy(tables)


def _copy(value: Any) -> Any:
    return type(value)(*map(_copy, value)) if isinstance(value, tuple) else np.copy(value)


def _build_rule(of: PolicySpec, params: EnvParams, unlike: bool) -> Rule:
    """What the policy says, in this world; `unlike`: its GPUs differ in speed."""
    queue = of.queue
    assert isinstance(of.rule, str) and not callable(queue.order)
    timed = of.seek is not None or (not queue.preempt and (of.rule in WAITING or not queue.timeless))
    timed = timed or unlike  # so is waiting for faster GPUs
    stops = queue.preempt and params.preemption.voluntary
    return Rule(
        kind=POLICIES.index(of.rule),
        backfill=queue.backfill,
        forward=_FORWARDS[of.forward],
        by_tenant=queue.order == "tenants",
        reserve=queue.reserve,
        timed=timed,
        settles=not timed,
        window=queue.window,
        threshold=of.threshold,
        patience=of.patience,
        ahead=of.ahead,
        lifetimes=of.lifetimes,
        looks=of.rule in WAITING,
        alike=of.rule == MATCH and queue.preempt,
        seek=_read_seek_numbers(of.seek),
        order=_find_order(queue.order),
        quantum=queue.quantum,
        margin=levels.margin(queue.order, queue.hysteresis),
        level_table=_level_table(queue.order),
        consolidate=queue.consolidate,
        racks=queue.racks,
        preempts=stops,
        faster=queue.faster and unlike,
        moves=stops and queue.faster and unlike,
        keyed=BY_RUN_TIME if queue.order == "sjf" else BY_AREA if queue.order == "area" else 0,
    )


def _build_stops(params: EnvParams) -> Stops:
    costs = params.preemption
    return Stops(
        restart_s=float(costs.restart_s) if costs.there else 0.0,
        checkpoint_s=float(costs.checkpoint_interval_s) if costs.there else 0.0,
        min_run_s=float(costs.min_run_s) if costs.there else 0.0,
        fails=params.failures.there,
        changes=_read_changes(params),
    )


def _find_order(order: levels.Ranking) -> int:
    """As `Rule.order`."""
    if isinstance(order, LevelTable):
        return TABLE
    return levels.ORDERS.index(order) if order in levels.ORDERS else -1


def _level_table(order: levels.Ranking) -> Int64[np.ndarray, "widths bins"]:
    if isinstance(order, LevelTable):
        return np.array(order.levels, np.int64)
    return np.zeros((WIDTH_CLASSES, RUN_BINS), np.int64)


def _read_seek_numbers(seek: SeekWeights | None) -> Float64[np.ndarray, "numbers"]:
    """In 32 bits, as other engines have them."""
    return np.array(() if seek is None else seek.numbers, np.float32).astype(np.float64)


def _read_changes(params: EnvParams) -> Int64[np.ndarray, "P N C"]:
    if not params.failures.there:
        return np.full((*params.cluster.shape[:2], 1), NEVER)
    return np.asarray(params.failures.changes, np.int64)


def _build_law(params: EnvParams) -> Records:
    """LAW[channels]."""
    law, weights = params.interference.law, params.interference.weights
    kappa = np.asarray(weights.kappa)
    if law is interference.none:
        kappa = np.zeros_like(kappa)
    return fill_table(
        LAW, {"kappa": kappa, "power": weights.power if law is interference.fitted else np.ones_like(kappa)}
    )
