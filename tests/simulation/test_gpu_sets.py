"""Jobs that may use some GPU types only: the event loop against the oracle, and what a user sees."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.bounds import jct_lower_bound_s
from jaxsched.cluster.build import build
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.errors import UserError
from jaxsched.policies.registry import parse_all
from jaxsched.simulation.outcome import gpu_types, rejections
from jaxsched.simulation.scenario import load_scenario
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import make_job_list, split_types
from jaxsched.workload.traces import read_trace, write_native
from tests.simulation.loop_cases import drawn, run_as_the_oracle
from tests.simulation.test_compiled_oracle import MATCHING, PREEMPTIVE, SEEKING, SPECS
from tests.support import strategies
from tests.support.cases import cases
from tests.support.random_cases import bound_case

LOGS = Path(__file__).resolve().parents[3] / "shared/cases/logs"
SHARES = (0.3, 0.7, 1.0)  # of the jobs


def same_as_the_oracle(case: strategies.Case, spec: str, *, in_python: bool) -> None:
    """The loop's run is the oracle's, and no job of it is off its types."""
    case, run = run_as_the_oracle(case, spec, in_python=in_python)
    kinds = np.array([*case.cluster.gpu_types, ""])[np.asarray(case.cluster.group_gpu_type)]
    for j in np.flatnonzero(run.tables.records["start"][: len(case.jobs)] >= 0):
        types = split_types(str(case.jobs.allowed[j]))
        used = kinds[run.tables.records["partition"][j]].reshape(-1)[run.tables.placement[j] > 0]
        assert not types or set(used) <= set(types), (types, used)


@pytest.mark.slow
@pytest.mark.parametrize("shape", strategies.SHAPES)
@settings(max_examples=10)
@given(data=st.data())
def test_some_policies(shape, data):
    same_as_the_oracle(*drawn(data, shape, bound_case, SHARES, SPECS | MATCHING | SEEKING), in_python=True)


@pytest.mark.slow
@settings(max_examples=8)
@given(data=st.data())
def test_some_that_stop_jobs(data):
    same_as_the_oracle(*drawn(data, "two", bound_case, SHARES, PREEMPTIVE), in_python=True)


@pytest.mark.long
@pytest.mark.parametrize("shape", strategies.SHAPES)
@cases(30)
@given(data=st.data())
def test_every_policy(shape, data):
    same_as_the_oracle(*drawn(data, shape, bound_case, SHARES), in_python=False)


@pytest.mark.skipif(not LOGS.exists(), reason=f"{LOGS} is not there")
@pytest.mark.parametrize("engine", ["compiled", pytest.param("jax", marks=pytest.mark.slower)])
def test_pods_of_openb_run_on_the_types_that_they_name(engine):
    scenario = load_scenario(str(LOGS / "openb_nodes_small.csv"), str(LOGS / "openb_gpu_spec.csv"))
    played = Settings(engine=engine, record_placements=True)
    (run,) = simulate(parse_all(["pack"]), scenario.cluster, scenario.jobs, played)["pack"]
    assert [gpu_types(run, scenario.cluster, job) for job in range(3)] == ["V100M32", "T4", ""]
    assert rejections(run) == {"for which no partition has enough GPUs of G2": 1}


def cluster_of(*kinds: str, schedulers: int = 1):
    return build([Server(gpu_type=kind) for kind in kinds], leaf_spine(len(kinds)), schedulers)


def test_types_that_jobs_name_change_the_table():
    """A job that waits for the only T4s, though V100s are free."""
    cluster, times = cluster_of("V100", "T4"), ([0.0, 0.0], [600.0, 600.0], [8, 8])
    free, bound = make_job_list(*times), make_job_list(*times, allowed="T4")
    runs = [simulate(parse_all(["pack"]), cluster, [jobs], Settings())["pack"][0] for jobs in (free, bound)]
    assert runs[0].start_s.tolist() == [0.0, 0.0]
    assert runs[1].start_s[0] == 0.0 and runs[1].start_s[1] >= runs[1].finish_s[0]
    assert jct_lower_bound_s(cluster, bound, 60.0) <= runs[1].jct_s.mean()


def test_products_names_are_understood_and_other_products_are_not_taken_for_them():
    cluster = cluster_of("A100", "H100")
    names = ["NVIDIA-A100-SXM4-80GB", "h100", "H100-PCIe", "a100|RTX-3090"]
    jobs = make_job_list([0.0] * 4, [60.0] * 4, [1] * 4, allowed=names)
    (run,) = simulate(parse_all(["pack"]), cluster, [jobs], Settings(record_placements=True))["pack"]
    assert [gpu_types(run, cluster, job) for job in range(4)] == ["A100", "H100", "", "A100"]


def test_where_no_job_may_use_the_gpus_that_are_there_that_is_said():
    jobs = make_job_list([0.0], [60.0], [1], allowed="B200")
    with pytest.raises(UserError, match="no job fits the cluster: jobs may use B200, the cluster has V100"):
        simulate(parse_all(["pack"]), cluster_of("V100"), [jobs], Settings())


def test_a_list_of_types_is_read_written_and_put_in_order(tmp_path):
    path, again = tmp_path / "trace.csv", tmp_path / "again.csv"
    head = "job_id,submit_time_s,num_gpus,duration_s,allowed_gpu_types\n"
    path.write_text(head + "a,0,1,60,H100 | A100\nb,0,1,60,\n")
    jobs, _ = read_trace(path)
    assert jobs.allowed.tolist() == ["A100|H100", ""]
    write_native(again, jobs)
    assert read_trace(again)[0].allowed.tolist() == ["A100|H100", ""]
    path.write_text(head + "a,0,1,60,|\n")
    with pytest.raises(
        UserError, match=r"line 2, allowed_gpu_types: '\|' should be GPU types such as A100 or A100\|H100"
    ):
        read_trace(path)
    with pytest.raises(UserError, match=r"allowed: ' \| ' should be GPU types"):
        make_job_list([0.0], [60.0], [1], allowed=" | ")
