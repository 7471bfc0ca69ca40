"""Queueing theory: one-GPU jobs on one server in FIFO order are an M/M/c queue, whose mean wait is known exactly.

`python tests/env/test_queueing.py` prints the table of docs/validation.md: the error against the interval's length.

A run is compared with two things. *The exact recursion* (Kiefer and Wolfowitz, 1955): each job of the same sample
starts when it has arrived and the first of the c servers is free. *Erlang C*, the expectation of the mean wait. A
sample's mean wait scatters: at load 0.9 the standard error is still 3 to 5% with 200,000 jobs. So the recursion on the
same jobs is the control variate: its expectation is Erlang C's wait, and `run - recursion + Erlang C` has the same
expectation as the run's mean, without that scatter. That the recursion does have this expectation is tested apart, with
4 million jobs. Every lane of a sample starts from the stationary distribution, so nothing is warmed up and thrown away.
"""

import functools
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.calibration.interference.named import interference_model
from jaxsched.cluster.build import build
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.env.environment import initial_state, is_finished
from jaxsched.env.stages import transition
from jaxsched.env.state import EnvConfig, make_params
from jaxsched.policies.registry import parse
from jaxsched.workload.jobs import JobTable, make_job_list, pad_table, to_table

MEAN_S = 1000.0
SERVERS = 4  # GPUs of the one server
LOADS = (0.5, 0.7, 0.9)
MODEL = 6  # any: a single GPU communicates nothing


def erlang_c(servers: int, load: float) -> float:
    """Mean wait of M/M/c in units of the mean service time."""
    offered = servers * load
    terms = [offered**n / math.factorial(n) for n in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    return last / (sum(terms) + last) / (servers * (1 - load))


def jobs_found(servers: int, load: float, quantile: np.ndarray) -> np.ndarray:
    """Jobs in the stationary system, by quantile."""
    weight = [1.0]
    for n in range(1, 2000):
        weight.append(weight[-1] * servers * load / min(n, servers))
    return np.searchsorted(np.cumsum(weight) / np.sum(weight), quantile)


def sample(seed: int, servers: int, load: float, lanes: int, jobs: int):
    """Submissions and durations in mean service times, `[lanes, jobs]`, and the numbers of jobs at time 0, `[lanes]`.

    The first rows of a lane are the jobs found at time 0 (what is left of an exponential time is exponential again).
    """
    rng = np.random.default_rng(seed)
    found = jobs_found(servers, load, (rng.permutation(lanes) + rng.random(lanes)) / lanes)
    gap = rng.exponential(size=(lanes, jobs)) / (servers * load)
    gap[np.arange(jobs) < found[:, None]] = 0.0
    return np.cumsum(gap, 1), rng.exponential(size=(lanes, jobs)), found


def recursion(servers: int, submit: np.ndarray, duration: np.ndarray) -> np.ndarray:
    """The exact waits of FIFO: every job takes the server that is free first."""
    free = np.zeros((len(submit), servers))
    wait = np.empty_like(submit)
    for job in range(submit.shape[1]):
        start = np.maximum(submit[:, job], free[:, 0])
        wait[:, job] = start - submit[:, job]
        free[:, 0] = start + duration[:, job]
        free.sort(axis=1)
    return wait


@functools.cache
def compiled(servers: int, lanes: int):
    """`(params, tables) -> boundaries of the starts, int32[lanes, jobs]`."""
    config = EnvConfig(
        running_slots=servers, queue_slots=128, rounds=servers + 1, early_stop=True, skip_idle=True, largest_worker=1
    )
    policy = parse("first-fit")

    def one_round(params, state):
        action = policy(jax.random.key(0), state, params)
        return transition(config, params, state, action)[0]

    def run(params, tables: JobTable):
        states = jax.vmap(functools.partial(initial_state, config, params))(tables)
        step = jax.vmap(functools.partial(one_round, params))
        return jax.lax.while_loop(lambda s: ~jax.vmap(is_finished)(s).all(), step, states).records.start

    return jax.jit(run)


def simulated(servers: int, submit: np.ndarray, duration: np.ndarray, interval: float) -> np.ndarray:
    """The waits in a run with decisions every `interval` mean service times."""
    interval_s = interval * MEAN_S
    topology = leaf_spine(1)
    cluster = build([Server(groups=(servers,))], topology, 1)
    params = make_params(cluster, interval_s=interval_s, interference=interference_model("none"))
    lists = [make_job_list(s * MEAN_S, d * MEAN_S, 1, model=MODEL) for s, d in zip(submit, duration, strict=True)]
    tables = [pad_table(to_table(jobs, interval_s), submit.shape[1]) for jobs in lists]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *tables)
    start = np.asarray(compiled(servers, len(submit))(params, stacked))
    assert (start >= 0).all()
    return start * interval - submit


def compare(seed: int, load: float, interval: float, lanes: int = 16, jobs: int = 1500, servers: int = SERVERS):
    """Errors against the recursion and against Erlang C, each as a share, and the standard error of the first."""
    submit, duration, found = sample(seed, servers, load, lanes, jobs)
    counted = np.arange(jobs) >= found[:, None]
    exact = np.where(counted, recursion(servers, submit, duration), 0.0).sum(1)
    run = np.where(counted, simulated(servers, submit, duration, interval), 0.0).sum(1)
    count = counted.sum()
    against_exact = run.sum() / exact.sum() - 1
    residual = run - exact * (1 + against_exact)
    scatter = math.sqrt(lanes / (lanes - 1) * (residual**2).sum()) / exact.sum()
    against_erlang = (run.sum() - exact.sum()) / count / erlang_c(servers, load)
    return against_exact, against_erlang, scatter


def test_erlang_c():
    # One server: load / (1 - load). Two: load^2 / (1 - load^2). Tabled: c = 5, load 0.8 waits with probability 0.5541.
    assert erlang_c(1, 0.5) == pytest.approx(1.0)
    assert erlang_c(2, 0.5) == pytest.approx(1 / 3)
    assert erlang_c(5, 0.8) == pytest.approx(0.5541, abs=1e-4)


def long_recursion(load: float, lanes: int = 2000) -> float:
    """Mean wait by the recursion of `lanes` times 2000 jobs."""
    submit, duration, found = sample(0, SERVERS, load, lanes, jobs=2000)
    return recursion(SERVERS, submit, duration)[np.arange(2000) >= found[:, None]].mean()


@pytest.mark.parametrize("load", LOADS)
def test_the_recursion_has_erlang_c_as_its_mean(load):
    assert long_recursion(load) == pytest.approx(erlang_c(SERVERS, load), rel=0.015)


@pytest.mark.parametrize(
    "load", [pytest.param(x, marks=pytest.mark.long if x < 0.9 else pytest.mark.slower) for x in LOADS]
)
def test_mean_wait(load):
    against_exact, against_erlang, scatter = compare(seed=1, load=load, interval=0.001)
    assert scatter < 0.003
    assert abs(against_exact) < 0.02
    assert abs(against_erlang) < 0.03


def table(intervals=(0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001), jobs: int = 6000) -> None:
    """The tables of docs/validation.md as Markdown."""
    loads = " | ".join(f"load {load}" for load in LOADS)
    print(f"| interval / mean duration | {loads} |")
    print("|---:|" + "---:|" * len(LOADS))
    for interval in intervals:
        cells = []
        for load in LOADS:
            exact, erlang, scatter = compare(1, load, interval, jobs=jobs)
            cells.append(f"{exact:+.2%} ± {scatter:.2%}; {erlang:+.2%}")
        print(f"| {interval} | " + " | ".join(cells) + " |", flush=True)
    print(f"\n| | {loads} |")
    print("|---|" + "---:|" * len(LOADS))
    print("| Erlang C, in mean durations | " + " | ".join(f"{erlang_c(SERVERS, load):.4f}" for load in LOADS) + " |")
    means = [long_recursion(load, lanes=10_000) / erlang_c(SERVERS, load) - 1 for load in LOADS]
    print("| exact recursion, 20 million jobs | " + " | ".join(f"{mean:+.2%}" for mean in means) + " |")


if __name__ == "__main__":
    sys.exit(table())
