"""Virtual clusters of unequal size: jobs go to the partition that is called as their tenant is."""

from pathlib import Path

import numpy as np
import pytest

from jaxsched.cli.main import main
from jaxsched.errors import UserError
from jaxsched.policies.registry import parse_all
from jaxsched.simulation.outcome import job_columns
from jaxsched.simulation.scenario import load_scenario
from jaxsched.simulation.settings import Settings, compact_tenants
from jaxsched.simulation.simulate import simulate

CLUSTER = "{servers: [{count: 6, groups: [4, 4]}], partitions: {vision: 3, speech: [server1], others: 2}}"
JOBS = """job_id,submit_time_s,num_gpus,duration_s,tenant,user
a,0,8,600,vision,ann
b,0,8,600,speech,bob
c,0,8,600,others,bob
d,5,24,600,vision,eve
e,5,8,600,speech,eve
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "jobs.csv").write_text(JOBS)
    return str(tmp_path / "cluster.yaml"), str(tmp_path / "jobs.csv")


def test_each_tenant_waits_for_the_servers_of_its_own_partition(files):
    scenario = load_scenario(*files)
    assert scenario.config["partitions"] == ["vision", "speech", "others"]
    (run,) = simulate(parse_all(["pack"]), scenario.cluster, compact_tenants(scenario.jobs), Settings())["pack"]
    found = job_columns(run, scenario.cluster)
    assert found["tenant"].tolist() == ["vision", "speech", "others", "vision", "speech"]
    assert found["user"].tolist() == ["ann", "bob", "bob", "eve", "eve"]
    assert run.partition.tolist() == [0, 1, 2, 0, 1]
    assert run.start_s.tolist() == [0.0, 0.0, 0.0, 600.0, 600.0], "others has a free server all the time"


def test_check_names_the_partitions(files, capsys):
    main(["check", files[0]])
    said = "a cluster of 6 servers in partitions (vision 3, speech 1, others 2)"
    assert capsys.readouterr().out == f"{files[0]}: {said}\n"


def test_a_tenant_without_a_partition_is_one_line(files):
    cluster, jobs = files
    Path(jobs).write_text(JOBS + "f,9,1,60,vison,\ng,9,1,60,vison,\nh,9,1,60,,\n")
    with pytest.raises(UserError) as error:
        load_scenario(cluster, jobs)
    says = "job 'f', tenant: 'vison' should be a partition of the cluster: vision, speech, others"
    assert str(error.value) == f"{jobs}: {says} (2 tenants of 3 jobs have none)"


def test_made_up_jobs_come_in_proportion_to_the_gpus(files):
    (jobs,) = load_scenario(files[0], "philly-like", num_jobs=3000, seeds=1).jobs
    np.testing.assert_allclose(np.bincount(jobs.home) / 3000, [3 / 6, 1 / 6, 2 / 6], atol=0.04)
    assert (jobs.tenant_name == np.array(["vision", "speech", "others"])[jobs.home]).all()
