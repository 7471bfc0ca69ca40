"""Jobs that reserve CPUs and memory of servers: the event loop against the oracle, and what a user sees."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.cluster.build import build
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.errors import UserError
from jaxsched.policies.registry import parse_all
from jaxsched.simulation.outcome import rejections
from jaxsched.simulation.scenario import load_scenario
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import make_job_list
from jaxsched.workload.traces import read_trace, write_native
from tests.simulation.loop_cases import LOOKING, drawn, run_as_the_oracle
from tests.support import strategies
from tests.support.cases import cases
from tests.support.random_cases import asking_case

LOGS = Path(__file__).resolve().parents[3] / "shared/cases/logs"
SHARES = (0.5, 1.0)  # of the jobs


def same_as_the_oracle(case: strategies.Case, spec: str, *, in_python: bool) -> None:
    """The loop's run is the oracle's, and at the end all has been given back."""
    case, run = run_as_the_oracle(case, spec, in_python=in_python)
    np.testing.assert_array_equal(run.tables.spare, case.cluster.reservable)


@pytest.mark.slow
@settings(max_examples=10)
@given(data=st.data())
def test_some_policies(data):
    same_as_the_oracle(*drawn(data, "two", asking_case, SHARES), in_python=True)


@pytest.mark.slow
@settings(max_examples=10)
@given(data=st.data())
def test_who_looks_ahead_sees_what_is_free_then(data):
    same_as_the_oracle(*drawn(data, "three", asking_case, SHARES, LOOKING), in_python=True)


@pytest.mark.long
@pytest.mark.parametrize("shape", strategies.SHAPES)
@cases(30)
@given(data=st.data())
def test_every_policy(shape, data):
    same_as_the_oracle(*drawn(data, shape, asking_case, SHARES), in_python=False)


@pytest.mark.skipif(not LOGS.exists(), reason=f"{LOGS} is not there")
@pytest.mark.parametrize("engine", ["compiled", pytest.param("jax", marks=pytest.mark.slow)])
def test_two_pods_of_90_of_96_cpus_do_not_run_together(engine):
    scenario = load_scenario(str(LOGS / "openb_cpu_node.csv"), str(LOGS / "openb_cpu.csv"))
    (run,) = simulate(parse_all(["pack"]), scenario.cluster, scenario.jobs, Settings(engine=engine))["pack"]
    assert run.start_s.tolist() == [0.0, 3600.0] and run.finish_s.tolist() == [3600.0, 7200.0]


def two_servers(memory_mib: int):
    return build([Server(cores=32, memory_mib=memory_mib)] * 2, leaf_spine(2), 1)


def test_a_gang_goes_to_as_many_servers_as_its_cpus_need():
    """32 cores each, 10 for a worker: three on a server, of which the first group takes what it can."""
    jobs = make_job_list([0.0], [60.0], [5], cpu_milli=10_000, memory_mib=1)
    played = Settings(record_placements=True)
    for rule in ("pack", "first-fit", "load-balance", "greedy-wait"):
        (run,) = simulate(parse_all([rule]), two_servers(10**6), [jobs], played)[rule]
        assert run.workers is not None and run.workers[0].reshape(2, 2).sum(-1).max() == 3, rule


def test_who_asks_for_more_than_any_server_has_is_rejected_with_the_reason():
    jobs = make_job_list([0.0, 0.0], [60.0, 60.0], [1, 1], memory_mib=[5000, 1000])
    (run,) = simulate(parse_all(["pack"]), two_servers(4000), [jobs], Settings())["pack"]
    assert np.isnan(run.start_s).tolist() == [True, False]
    assert rejections(run) == {"larger than any partition in GPUs, CPUs or memory": 1}
    jobs = dataclasses.replace(jobs, memory_mib=np.full(2, 5000))
    with pytest.raises(UserError, match="a worker asks for 0 CPU cores and 5000 MiB or more, a server has 32 and 4000"):
        simulate(parse_all(["pack"]), two_servers(4000), [jobs], Settings())


def test_columns_are_read_and_written(tmp_path):
    path, again = tmp_path / "trace.csv", tmp_path / "again.csv"
    head = "job_id,submit_time_s,num_gpus,duration_s,cpu_milli,memory_mib\n"
    path.write_text(head + "a,0,1,60,4000,\nb,0,1,60,,2048\n")
    jobs, _ = read_trace(path)
    assert jobs.cpu_milli.tolist() == [4000, 0] and jobs.memory_mib.tolist() == [0, 2048]
    write_native(again, jobs)
    assert read_trace(again)[0].cpu_milli.tolist() == [4000, 0]
    path.write_text(head + "a,0,1,60,-1,\n")
    with pytest.raises(UserError, match="line 2, cpu_milli: '-1' should be a whole number >= 0"):
        read_trace(path)
