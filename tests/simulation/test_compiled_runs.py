"""Whole runs by the compiled event loop: what the JAX environment gives, and a clear word where it cannot play."""

import ast
import dataclasses
import importlib.metadata
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched import event_loop
from jaxsched.bench import programs
from jaxsched.bench import simulator as bench
from jaxsched.cluster.presets import get_cluster
from jaxsched.env import queues
from jaxsched.env.extensions.gpu_sets import usable_groups
from jaxsched.env.queues import Discipline
from jaxsched.env.state import assign_homes
from jaxsched.errors import Slower, UserError
from jaxsched.evaluation.compare import compare
from jaxsched.event_loop import Run, coverage, numba_missing
from jaxsched.event_loop._kernel import jit, machine_code
from jaxsched.event_loop._kernel.events import play
from jaxsched.machine import usable_folder
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse
from jaxsched.simulation import compiled_engine as engine
from jaxsched.simulation.compiled_engine import CompiledEngine
from jaxsched.simulation.engine import Stopped
from jaxsched.simulation.outcome import STATUS, Outcome
from jaxsched.simulation.settings import PlayedWorld, Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import JobList, make_job_list, to_table
from jaxsched.workload.load import WorkloadOptions, get_workload
from tests.support.cases import few

SPECS = ("pack:area+backfill+spread", "tetris:tenants", "greedy-wait:sjf+spread+lifetime+reserve+p1")


WORLDS = [  # the oracle tests hold both engines to more
    ("dragonfly-8", {"interference": "analytic:high", "interval_s": 23.7}),
    ("leaf-spine-4", {"interference": "fitted"}),
    ("fat-tree-8", {"interference": "none", "horizon_s": 40_000.0, "rounds": 2}),
]


def jobs_for(cluster, count: int = 300) -> JobList:
    gpus = int(np.asarray(cluster.group_gpus).sum())
    return get_workload("distributed", WorkloadOptions(num_jobs=count, load=0.9, total_gpus=gpus, schedulers=2))[0]


def outcomes(name: str, cluster, jobs: JobList, specs=SPECS, **changes):
    found = compare(cluster, [jobs], specs, Settings(engine=name, record_placements=True, **changes))
    return [row.outcomes[0] for row in found.rows]


@pytest.mark.long
@pytest.mark.parametrize(("topology", "changes"), few(WORLDS[:1], WORLDS))
def test_jobs_go_as_in_the_environment(topology, changes):
    cluster = get_cluster(topology, 2)
    jobs, slow, alike = jobs_for(cluster), 0, 0
    for jax, ours in zip(*(outcomes(name, cluster, jobs, **changes) for name in ("jax", "compiled")), strict=True):
        assert (jax.stats.engine, ours.stats.engine) == ("jax", "compiled")
        np.testing.assert_array_equal(ours.status, jax.status)
        slow += (ours.run_s > 1.1 * jobs.duration_s).sum()
        if parted_by_rounding(ours, jax):
            continue
        alike += 1
        np.testing.assert_array_equal(ours.start_s, jax.start_s)
        np.testing.assert_array_equal(ours.partition, jax.partition)
        np.testing.assert_array_equal(ours.workers, jax.workers)
        np.testing.assert_allclose(ours.finish_s, jax.finish_s, rtol=1e-6)
        assert ours.cut_off == jax.cut_off and ours.unfinished == ("horizon_s" in changes)
        assert ours.stats.simulated_s == pytest.approx(jax.stats.simulated_s, rel=1e-6)
    assert alike >= 2
    assert slow > 10 or changes["interference"] == "none"  # there is some contention, or slow placements


def parted_by_rounding(ours: Outcome, jax: Outcome) -> bool:
    """Starts differ, first at a boundary at which a job is within float32 of being as good as done.

    That is at 1e-6 of its duration (docs/semantics.md, section 5), which is seconds for jobs of weeks: see
    docs/validation.md.
    """
    starts = np.nan_to_num([ours.start_s, jax.start_s], nan=np.inf)  # some jobs never start
    differ = starts[0] != starts[1]
    if not differ.any():
        return False
    boundary = starts[:, differ].min()
    before = ours.start_s < boundary
    np.testing.assert_array_equal(ours.workers[before], jax.workers[before])
    return bool((np.abs(ours.finish_s - boundary)[before] <= 2e-6 * ours.run_s[before]).any())


def test_jobs_that_fit_nowhere_are_rejected():
    cluster = get_cluster("leaf-spine-2", 2)
    jobs = make_job_list([0.0, 1.0, 2.0], [100.0, 100.0, 100.0], [4, 16, 2])
    reports = []
    found = compare(cluster, [jobs], ["pack"], Settings(engine="compiled"), report=reports.append)
    assert found.rows[0].jobs.rejected == 1 and found.rows[0].jobs.finished == 2
    assert reports[-1].over and reports[-1].finished == reports[-1].total == 3
    assert 160 <= reports[-1].simulated_s < 300


@pytest.mark.slower
def test_jobs_at_the_horizon_are_as_in_the_environment():
    cluster = get_cluster("leaf-spine-2", 2)
    running = make_job_list([0.0, 535.0, 595.0, 640.0], [9000.0, 9000.0, 9000.0, 9000.0], [2, 2, 2, 2])
    idle = make_job_list([5000.0], [100.0], [2])
    for jobs, states in ((running, ["running", "running", "queued", "not arrived"]), (idle, ["not arrived"])):
        for name in ("jax", "compiled"):
            (result,) = outcomes(name, cluster, jobs, ["pack"], horizon_s=600.0)
            assert [STATUS[code] for code in result.status] == states
            assert result.stats.simulated_s == 600 and result.cut_off == "at the horizon of 600 s"


def test_a_rejected_job_of_many_gpus_takes_no_room():
    cluster = get_cluster("leaf-spine-2", 2)
    jobs = make_job_list([0.0, 1.0], [100.0, 100.0], [1, 1], gpus_per_worker=[1, 2**31 - 1])
    player = CompiledEngine().prepare(parse("pack"), PlayedWorld(cluster, [jobs], Settings()))
    run = Run(player.config, player.params, to_table(jobs, 60.0), player.policy, 60)
    assert run.tables.fits.shape[1] == 2 and run.go_on()
    assert run.finished == 1 and run.home[1] == -1


@pytest.mark.slow
def test_jobs_are_forwarded_as_often_as_allowed_and_no_oftener():
    """Where jobs are stopped they are forwarded again and again, if they may be."""
    cluster = get_cluster("leaf-spine-2", 2)
    jobs, policy = jobs_for(cluster, 80), "pack:las+backfill+spread+preempt"
    most = []
    for allowed in (0, 2, 50):
        (result,) = outcomes("auto", cluster, jobs, [policy], preemption=True, max_forwards=allowed)
        assert result.stats.engine == "compiled"
        most.append(int(result.forwards.max()))
    assert most[:2] == [0, 2] and 2 < most[2] <= 50


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["jax", "compiled"])
def test_jobs_that_end_at_the_same_time_as_the_gang_can_start_leave_what_they_free(engine):
    # Of 8 GPUs two jobs have three each. The gang of 5 can start when the first ends; the second is then done as well,
    # if it ends at the same time up to 0.0877%, and leaves 3 GPUs more: a long job of 2 may start meanwhile.
    cluster = get_cluster("leaf-spine-1", 1)
    for second_s, waits in ((10_008.0, False), (10_010.0, True)):
        durations = [10_000.0, second_s, 1000.0, 50_000.0]
        jobs = make_job_list([0.0, 0.0, 1.0, 61.0], durations, [1, 1, 5, 2], gpus_per_worker=[3, 3, 1, 1])
        (result,) = outcomes(engine, cluster, jobs, ["pack:fifo+backfill+reserve"], interference="none")
        assert result.stats.engine == engine
        assert (result.start_s[3] > 10_000) == waits


@pytest.mark.slower
def test_auto_takes_the_loop_where_it_can(monkeypatch):
    cluster = get_cluster("leaf-spine-2", 2)
    jobs = jobs_for(cluster, 20)

    def engines(specs, jobs=jobs) -> list[str]:
        return [result.stats.engine for result in outcomes("auto", cluster, jobs, specs)]

    shared = dataclasses.replace(jobs, workers=np.ones_like(jobs.workers), ps=np.zeros_like(jobs.ps))
    shared = dataclasses.replace(shared, milli=np.full_like(jobs.milli, 500))
    assert engines(["pack:backfill+reserve", "greedy-wait:p1", "random"]) == ["compiled", "compiled", "jax"]
    assert engines(["pack", "match"], shared) == ["compiled", "compiled"]
    monkeypatch.setattr(coverage, "numba_missing", lambda: "none")
    assert engines(["pack"]) == ["jax"]


def test_what_it_cannot_play_is_said(monkeypatch):
    cluster = get_cluster("leaf-spine-2", 2)
    jobs = jobs_for(cluster, 20)
    pack = parse("pack")
    own, queue = Policy("mine", pack.function), Discipline(order=lambda state, params: state.queue.astype(jnp.float32))
    ordered = dataclasses.replace(pack, name="ordered", act=dataclasses.replace(pack.spec, queue=queue))
    monkeypatch.setattr(queues, "ORDERS", (*queues.ORDERS, "longest"))  # a new order, of which the loop has no keys
    new = dataclasses.replace(pack, name="new", act=dataclasses.replace(pack.spec, queue=Discipline(order="longest")))
    for spec, reason in (
        ("random", "it has the policies first-fit, pack, "),
        (own, "it has the policies first-fit, pack, "),
        (ordered, "it has the queue orders fifo, sjf, area, "),
        (new, "it has the queue orders fifo, sjf, area, "),
    ):
        with pytest.raises(UserError, match=f"engine compiled: cannot play .*: {reason}"):
            outcomes("compiled", cluster, jobs, [spec])
    with pytest.raises(UserError, match="engine: 'numba' should be one of auto, jax, compiled"):
        Settings(engine="numba")
    with pytest.raises(UserError, match="order: 'longest' has no keys in JAX"):
        outcomes("jax", cluster, jobs, [new])
    assert coverage.ORDERS == tuple(order for order in queues.ORDERS if order != "longest")


@pytest.mark.parametrize(
    ("spec", "beyond"),
    [
        ("pack:las+backfill", "the order 'las'"),
        ("pack:las+preempt", "'preempt'"),
        ("pack:sjf+backfill+spread+seek", "'seek'"),
        ("search:pack:sjf", "a search"),
    ],
)
def test_what_only_the_loop_plays_is_said(monkeypatch, spec, beyond):
    cluster = get_cluster("leaf-spine-2", 2)
    jobs, world = jobs_for(cluster, 5), {"preemption": "preempt" in spec}
    said = f"it has {beyond}, which only the compiled event loop plays"
    with pytest.raises(UserError, match=f"engine jax: cannot play '{re.escape(spec)}': {said}"):
        outcomes("jax", cluster, jobs, [spec], **world)
    with pytest.raises(UserError, match=f"policy: {beyond} is for the event loop only"):
        _ = parse(spec).function
    monkeypatch.setattr(coverage, "LAWS", ())
    with pytest.raises(UserError, match=f"no engine plays it here: {said}, and of that loop, it has no interference"):
        outcomes("auto", cluster, jobs, [spec], **world)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, r"it needs Numba, `pip install 'jaxsched\[compiled\]'`"),
        ("0.67.1", r"it needs Numba 0\.68 or newer, 0\.67"),
    ],
)
def test_without_numba_or_with_an_old_one(monkeypatch, version, reason):
    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    cluster = get_cluster("leaf-spine-2", 2)
    numba_missing.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", installed)
    with pytest.raises(UserError, match=f"engine compiled: cannot play .*: {reason}"):
        outcomes("compiled", cluster, jobs_for(cluster, 20), ["pack"])
    numba_missing.cache_clear()


def test_without_numba_the_loop_plays_in_python_what_jax_lacks(monkeypatch):
    """As it would with Numba, and a warning says that it is slow."""
    cluster, spec = get_cluster("leaf-spine-2", 2), "pack:las+backfill+preempt"
    jobs = jobs_for(cluster, 20)
    (there,) = outcomes("compiled", cluster, jobs, [spec], preemption=True)
    monkeypatch.setattr(coverage, "numba_missing", lambda: "it needs Numba")
    with pytest.warns(
        Slower, match=f"{re.escape(spec)}: is played some hundred times slower, in Python: it needs Numba"
    ):
        (missing,) = outcomes("auto", cluster, jobs, [spec], preemption=True)
    np.testing.assert_array_equal(missing.finish_s, there.finish_s)
    with pytest.raises(UserError, match="policy 'search:pack:sjf': no engine plays it here: it has a search"):
        outcomes("auto", cluster, jobs, ["search:pack:sjf"])


def test_what_takes_long_in_python_becomes_machine_code(monkeypatch):
    cluster = get_cluster("leaf-spine-2", 2)
    jobs = jobs_for(cluster, 60)
    allowance = engine.Allowance(100.0)
    monkeypatch.setattr(engine, "IN_PYTHON", allowance)
    tried, kept = [], engine.CompiledPlayer._run
    monkeypatch.setattr(
        engine.CompiledPlayer,
        "_run",
        lambda self, *args, in_python: tried.append(in_python) or kept(self, *args, in_python=in_python),
    )
    (first,) = outcomes("compiled", cluster, jobs, ["pack"])
    allowance.left_s = 1e-9
    (second,) = outcomes("compiled", cluster, jobs, ["pack"])
    (third,) = outcomes("compiled", cluster, jobs, ["pack"])
    assert tried == [True, True, False, False]
    assert machine_code.is_kept("play", simple=True) or machine_code.is_kept("play")
    assert not machine_code.is_kept("what nobody called")
    for other in (second, third):
        np.testing.assert_array_equal(first.finish_s, other.finish_s)


SIMPLE = ("pack", "tetris:sjf+backfill+reserve", "contention-aware:area+backfill+spread", "least-interference:tenants")


@pytest.mark.parametrize("spec", SIMPLE)
@pytest.mark.parametrize("failures", [False, True])
def test_simple_worlds_never_need_what_is_left_out_of_their_machine_code(monkeypatch, spec, failures):
    def fail(*args):
        raise AssertionError("it is called in a simple world")

    cluster = get_cluster("leaf-spine-2", 2)
    jobs = jobs_for(cluster, 30)
    for name, module in list(sys.modules.items()):
        if name.startswith("jaxsched.event_loop._kernel."):
            for own, value in list(vars(module).items()):
                if callable(value) and inspect.isfunction(value) and value in jit.SPECIAL:
                    monkeypatch.setattr(module, own, fail)
    settings = Settings(failures="20,0.5") if failures else Settings()
    player = CompiledEngine(plain=True).prepare(parse(spec), PlayedWorld(cluster, [jobs], settings))
    assert event_loop.is_simple(parse(spec)) and np.isfinite(player.play([jobs])[0].finish_s).any()


def test_machine_code_of_simple_worlds_gives_the_same(monkeypatch):
    monkeypatch.setattr(engine, "IN_PYTHON", engine.Allowance(0.0))
    cluster = get_cluster("leaf-spine-4", 2)
    jobs = jobs_for(cluster, 200)
    policies = [parse(spec) for spec in SIMPLE]
    whole = [CompiledEngine().prepare(one, PlayedWorld(cluster, [jobs], Settings())).play([jobs]) for one in policies]
    monkeypatch.setattr(machine_code, "_is_first", lambda function: True)  # as on a machine where nothing is compiled
    small = simulate(policies, cluster, [jobs], Settings())
    assert machine_code.is_kept("play", simple=True)
    for one, (outcome,) in zip(policies, whole):
        np.testing.assert_array_equal(outcome.finish_s, small[one.name][0].finish_s)
        np.testing.assert_array_equal(outcome.start_s, small[one.name][0].start_s)


def test_machine_code_of_simple_worlds_has_names_of_its_own():
    """LLVM takes what it finds by a name: where one process had both kinds, runs never ended."""
    whole, simple = (
        [one.py_func.__qualname__ for one in _parts_of(machine_code._whole(play, simple))] for simple in (False, True)
    )
    assert len(whole) > 50 and not set(whole) & set(simple)
    never = [machine_code._part(function, True).py_func.__qualname__ for function in jit.SPECIAL]
    assert len(set(never)) == len(jit.SPECIAL), "so have those that are never called"


def _parts_of(made):
    """A function for Numba, and all that it calls."""
    found, rest = [], [made]
    while rest:
        found.append(rest.pop())
        called = found[-1].py_func.__globals__.values()
        rest += [one for one in called if hasattr(one, "py_func") and one not in found + rest]
    return found


ELSEWHERE = """
import shutil, sys, jaxsched
for policy in sys.argv[3:]:
    result = jaxsched.compare("leaf-spine-4", "distributed", [policy], num_jobs=3000, load=0.9, seeds=1)
    print(result.rows[0].figures.jct_mean_s)
    shutil.copytree(sys.argv[1], sys.argv[2], dirs_exist_ok=True)
"""


@pytest.mark.long
def test_machine_code_that_another_process_kept_meanwhile(tmp_path):
    """The one compiles what is for simple worlds and goes on with what the other has kept of all worlds."""

    def play_elsewhere(folder, *args):
        environment = os.environ | {"JAXSCHED_CACHE": str(folder)}
        words = [sys.executable, "-c", ELSEWHERE, *map(str, args)]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=300).stdout

    other, mine = tmp_path / "other", tmp_path / "mine"
    alone = play_elsewhere(other, other, tmp_path / "copy", "greedy-wait", "pack")
    both = play_elsewhere(mine, other, mine, "pack", "greedy-wait")
    assert alone.split() == both.split()[::-1]


@pytest.mark.parametrize(
    "spec", ["greedy-wait", "match", "pack:srsf+backfill+preempt", "search:greedy-wait", "pack:fifo+racks"]
)
def test_what_looks_seeks_stops_or_searches_is_not_simple(spec):
    assert not event_loop.is_simple(parse(spec))


def test_a_run_can_be_cut_off_and_stopped(monkeypatch):
    cluster = get_cluster("leaf-spine-2", 2)
    jobs = jobs_for(cluster, 60)
    settings = Settings(wall_limit_s=1e-9)
    player = CompiledEngine().prepare(parse("pack"), PlayedWorld(cluster, [jobs], settings))
    monkeypatch.setattr(engine, "FEWEST_ROUNDS", 5)
    (result,) = player.play([jobs])
    assert result.cut_off == "after 0 s on the wall" and result.unfinished and 5 <= result.stats.steps < 10
    assert np.nanmax(result.start_s) <= result.stats.simulated_s < jobs.submit_s[-1]
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        player.play([jobs], stop=stop)


def test_bench_plays_every_environment(monkeypatch):
    monkeypatch.setattr(bench, "LEAST_WALL_S", 0.0)
    monkeypatch.setattr(bench, "POOL", 2)
    row = bench.bench_compiled("leaf-spine-2", "pack", 3)
    assert (row.name, row.num_envs, row.servers, row.decisions_per_s) == ("compiled/pack", 3, 2, None)
    assert row.jobs_per_cpu_s is not None
    config, cluster, _ = programs.environment_of("leaf-spine-2", None)
    tables, usable = programs.job_tables(cluster, config, 2), usable_groups(cluster, config.gpu_sets)
    fit = (assign_homes(cluster, tables, usable, config.largest_group).home >= 0).sum(-1)
    assert row.jobs_per_cpu_s * row.cpu_s == pytest.approx(fit[0] + fit[1] + fit[0])  # a list each, the pool has two


def test_a_cache_that_cannot_be_written_is_none(tmp_path):
    (tmp_path / "file").write_text("")
    assert not usable_folder(tmp_path / "file" / "cache")
    assert usable_folder(tmp_path / "cache")


def test_machine_code_is_made_anew_where_what_it_was_made_from_changes():
    """That is the modules of all marked functions, and those that these take something from."""
    own = {function.__module__ for function in jit.COMPILED | jit.INLINED}
    sources = [ast.parse(path_of(name).read_text(encoding="utf-8")) for name in own]
    taken = {str(node.module) for source in sources for node in ast.walk(source) if isinstance(node, ast.ImportFrom)}
    assert {path_of(name) for name in own | taken if name.startswith("jaxsched.")} <= {*machine_code._SOURCES}


def path_of(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin)
