"""All that golden runs take from the package, found wherever in a room it is: old trees play them, too."""

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np


def _found(name: str, *rooms: str) -> Any:
    """What a module of these rooms, or of modules of that name, defines under this name."""
    package = Path(str(importlib.import_module("jaxsched").__file__)).parent
    defines = re.compile(rf"^(def {name}\(|class {name}\b|[\w, ()=]*\b{name}\b[\w, ()]* = )", re.M)
    files = [
        *(package / f"{room}.py" for room in rooms),
        *(path for room in rooms for path in (package / room).rglob("*.py")),
    ]
    found = [path for path in files if path.is_file() and defines.search(path.read_text(encoding="utf-8"))]
    if len(found) != 1:
        raise ImportError(f"golden runs: {name} should be in one module of {rooms}, is in {found}; mend {__name__}")
    module = ".".join(found[0].relative_to(package.parent).with_suffix("").parts)
    return getattr(importlib.import_module(module), name)


UserError = _found("UserError", "errors")
Settings = _found("Settings", "simulation")
simulate = _found("simulate", "simulation")
parse = _found("parse", "policies")
Policy = _found("Policy", "policies")
get_cluster = _found("get_cluster", "cluster")
make_job_list = _found("make_job_list", "workload")
Outages = _found("Outages", "cluster")
versions = _found("versions", "versions", "machine")
main = _found("main", "cli")


def with_estimates(jobs: Any, error: float, seed: int) -> Any:
    """The same jobs with estimates `duration * exp(error * z)`, z standard normal."""
    ratio = np.exp(error * np.random.default_rng((7, seed)).standard_normal(len(jobs)))
    return dataclasses.replace(jobs, estimate_ratio=ratio)


def act_of(spec: str) -> Any:
    """The JAX function `(key, state, params, weights) -> Action` of a hand-written policy."""
    policy = parse(spec)
    return getattr(policy, "function", policy.act)


def with_stops(action: Any, state: Any, stop: Any) -> Any:
    """The action in which schedulers that would wait stop running jobs where `stop`, bool[P, R], says so."""
    wait, stopping = (_found(name, "env") for name in ("WAIT", "STOP"))
    import jax.numpy as jnp

    stop = stop & (running_rows(state) >= 0)
    stops = (action.kind == wait) & stop.any(-1)
    return action.replace(kind=jnp.where(stops, stopping, action.kind), stop=stop & stops[:, None])


def running_rows(state: Any) -> Any:
    """The job in every running slot, int32[P, R]; -1 where there is none."""
    return state.running.job


def stopped_columns(outcome: Any) -> dict[str, Any]:
    """What being stopped did to the jobs; empty where nobody is stopped."""
    found = outcome.interruptions
    if found is None:
        return {}
    names = {
        "stops": ("stops",),
        "held_s": ("held_s",),
        "restarting_s": ("restarting_s",),
        "lost_s": ("lost_s",),
        "failures": ("falls", "failure_restarts", "failures"),
        "failures_lost_s": ("fallen_s", "failure_lost_s"),
    }
    return {name: next(getattr(found, at) for at in places if hasattr(found, at)) for name, places in names.items()}


def planner(policy: str) -> Any:
    """A planner of two partitions, small enough to compile fast: its `plan` takes what `snapshot` makes."""
    try:
        guarded = _found("GuardedPolicy", "kube")
    except ImportError:  # before it had this name
        guarded = _found("CompiledPolicy", "kube")
    settings, make = _found("PlanSettings", "kube"), _found("Planner", "kube")
    made = settings(schedulers=2, running_slots=8, queue_slots=8, headroom=4.0, preemption=True)
    return make(guarded(policy, made), made)


def snapshot(now_s: float, nodes: list[dict], pods: list[dict]) -> Any:
    """What a planner plans from, of raw API objects."""
    shot, read_node, read_pod = (_found(name, "kube") for name in ("Snapshot", "read_node", "read_pod"))
    return shot(now_s=now_s, nodes=tuple(map(read_node, nodes)), pods=tuple(map(read_pod, pods)))


def job_lists(workload: str, seeds: int = 2) -> list[dict[str, Any]]:
    """The columns of the first 500 jobs of a synthetic workload or a trace, for each of some seeds."""
    load_scenario = _found("load_scenario", "simulation")
    names = ("submit_s", "duration_s", "workers", "gpus_per_worker", "ps", "model", "tenant", "home", "milli", "ended",
             "given_s", "gpu_type", "job_id")  # fmt: skip
    options = {"num_jobs": 500, "seeds": seeds, "load": 0.8, "duration_error": 0.3}
    if workload == "llm":
        options["models"] = "llm"
    lists = load_scenario("leaf-spine-64", workload, **options).jobs
    columns = [{name: getattr(jobs, name).tolist() for name in names} for jobs in lists]
    return [rows | {"estimate_s": jobs.estimate_s.tolist()} for rows, jobs in zip(columns, lists, strict=True)]


def gym_env(in_turns: bool) -> Any:
    """Four servers, two schedulers and forty jobs, as Gymnasium has it."""
    make, env = _found("make", "adapters"), _found("GymEnv", "adapters")
    return env(make("leaf-spine-4", num_jobs=40, episodes=2, in_turns=in_turns, schedulers=2))
