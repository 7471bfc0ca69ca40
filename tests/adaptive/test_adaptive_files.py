"""Mistakes in profiles, workloads and options are one line each; a policy of a file is played."""

import ast
import csv
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsched
from jaxsched.adaptive.compare import outages_of, parts_of, write_jobs
from jaxsched.adaptive.policies import POLICIES
from jaxsched.adaptive.profiles import read_applications
from jaxsched.adaptive.simulate import Nodes, Result, Rules, simulate
from jaxsched.adaptive.tables import widths
from jaxsched.adaptive.view import AllocationPolicy, _whole, most_free, whole_nodes
from jaxsched.adaptive.workload import Job, read_workload
from jaxsched.cli.main import main
from jaxsched.cluster.presets import get_inventory
from jaxsched.errors import DoubtfulFile, UserError
from tests.adaptive.files import APPS, NODES, PER_NODE, write_profiles, write_workload
from tests.oracle import adaptive as oracle
from tests.oracle import allocation

HEADER = "name,time,application,num_replicas,batch_size"
MORE = f"{HEADER},min_replicas,max_replicas,deadline"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("adaptive")
    write_profiles(made / "profiles", np.random.default_rng(3))
    write_workload(made / "workload.csv", np.random.default_rng(5))
    (made / "cluster.yaml").write_text(f"servers: [{{count: {NODES}, groups: [{PER_NODE}]}}]\nschedulers: 1\n")
    return made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,time\na,1\n", "no column application"),
        (f"{HEADER}\n", "no jobs"),
        (f"{HEADER},colour\na,1,small,1,16,red\n", "the column colour means nothing here"),
        (f"{HEADER}\na,1,huge,1,16\n", "line 2, application: 'huge' should be the name of a folder of profiles"),
        (f"{HEADER}\na,1,small,1,4\n", "line 2, batch_size: '4' should be at least 8, the smallest"),
        (f"{HEADER}\na,1,small,1,999\n", "line 2, batch_size: '999' should be at most 64"),
        (f"{HEADER}\na,-1,small,1,16\n", "line 2, time: '-1' should be a finite number >= 0"),
        (f"{HEADER}\na,1,small,0,16\n", "line 2, num_replicas: '0' should be a whole number >= 1"),
        (f"{HEADER}\na,1,small,1,16\na,2,small,1,16\n", "line 3, name: 'a' should be one that no job before has"),
        (f"{MORE}\na,100,small,1,16,,,99\n", "line 2, deadline: '99' should be after the submission at 100"),
        (f"{MORE}\na,1,small,1,16,3,2,\n", "line 2, max_replicas: '2' should be a whole number >= 3"),
        (f"{MORE}\na,1,small,1,16,3,4,\n", "line 2, num_replicas: '1' should be a whole number >= 3"),
        (f"{MORE}\na,1,small,5,16,3,4,\n", "line 2, num_replicas: '5' should be at most max_replicas, 4"),
    ],
)
def test_mistakes_of_a_workload(text, said, folder, tmp_path):
    path = tmp_path / "workload.csv"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_workload(path, read_applications(folder / "profiles"))
    assert said in str(error.value) and "\n" not in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize(
    ("name", "job", "said"),
    [
        ("equal", "a,1,small,50,16,50,60,", "line 2, min_replicas: '50' should be at most 16, what the profile of"),
        ("pollux", "a,1,small,3,16,3,3,", "line 2, max_replicas: '3' should be at least 4, the next number of GPUs"),
        ("tiresias", "a,1,small,5,16,,,", "line 2, num_replicas: '5' should be 1 to 4, what the profile of small"),
    ],
)
def test_what_can_never_run(name, job, said, folder, tmp_path):
    """A batch of 16 leaves 4 GPUs, 4 for each."""
    path, apps = tmp_path / "workload.csv", read_applications(folder / "profiles")
    path.write_text(f"{MORE}\n{job}\n")
    with pytest.raises(UserError) as error:
        simulate(POLICIES[name], apps, [read_workload(path, apps)], (Nodes(NODES, PER_NODE),))
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("placements.csv", "placement,local_bsz,step_time\n1,4,1\n", "no column sync_time"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n1x,4,1,0\n", "line 2, placement: '1x' should be"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n1,4,0,0\n", "step_time: '0' should be"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n1,4,1,2\n", "sync_time: '2' should be at most"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n1,4,1,0\n1,4,1,0\n", "line 3, local_bsz: '4'"),
        ("scalability.csv", "num_nodes,num_replicas,local_bsz,step_time,sync_time\n3,2,4,1,0\n", "num_replicas: '2'"),
        ("validation-8.csv", "progress,iteration,grad_sqr,grad_var\n5,1,1,1\n5,2,1,1\n", "line 3, progress: '5'"),
        ("validation-8.csv", "progress,iteration,grad_sqr,grad_var\n", "no rows"),
        ("validation-8.csv", "progress,iteration,grad_sqr,grad_var\n5,1,0,0\n", "grad_var: '0' should be above 0"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n12,4,1,0\n21,4,2,0\n", "line 3, local_bsz: '4'"),
    ],
)
def test_mistakes_of_a_profile(file, text, said, tmp_path):
    write_profiles(tmp_path, np.random.default_rng(3))
    (tmp_path / "small" / file).write_text(text)
    with pytest.raises(UserError) as error:
        read_applications(tmp_path)
    assert said in str(error.value) and "\n" not in str(error.value) and file in str(error.value)


def test_runs_of_unequal_length_are_told(tmp_path):
    """Before: a file that was cut off made all jobs shorter, without a word."""
    write_profiles(tmp_path, np.random.default_rng(3))
    (tmp_path / "small" / "validation-8.csv").write_text("progress,iteration,grad_sqr,grad_var\n5,1,1,1\n")
    with pytest.warns(DoubtfulFile, match=r"validation-8.csv: has 1 epochs, .*csv has 5: jobs are done after 1; if"):
        assert read_applications(tmp_path)["small"].epochs == 1


def run_times(policy, apps, nodes, path, **rules):
    (result,) = simulate(POLICIES[policy], apps, [read_workload(path, apps)], nodes, Rules(**rules))
    return result.jct_s


def test_a_cluster_of_one_type_has_its_own_profile(folder, tmp_path):
    """Before: `placements.csv` was read, whatever the type."""
    write_profiles(tmp_path / "profiles", np.random.default_rng(3), kinds=("", "T4"))
    (tmp_path / "cluster.yaml").write_text(f"servers: [{{count: {NODES}, groups: [{PER_NODE}], gpu_type: T4}}]\n")
    options = ["--cluster", str(tmp_path / "cluster.yaml"), "--workload", str(folder / "workload.csv"), "--policy"]
    options += ["equal", "--schedulers", "1", "--interference", "none", "--jobs-out", str(tmp_path / "jobs.csv")]
    main(["simulate", "--profiles", str(tmp_path / "profiles"), *options])
    found = np.loadtxt(tmp_path / "jobs.csv", delimiter=",", skiprows=1, usecols=5)
    for kind, same in (("T4", True), ("", False)):
        apps, nodes = read_applications(tmp_path / "profiles", (kind,)), (Nodes(NODES, PER_NODE, kind),)
        assert np.allclose(run_times("equal", apps, nodes, folder / "workload.csv"), found) == same
    (only,) = read_applications(folder / "profiles", ("V100",))["small"].step_times
    assert only == "V100"


def test_the_hours_before_the_first_job_change_nothing(folder, tmp_path):
    """Before: no round was played after 20,000, and outages counted from 0."""
    header, *lines = (folder / "workload.csv").read_text().splitlines()
    rows = [dict(zip(header.split(","), line.split(","))) for line in lines]
    late = [",".join((row | {"time": str(float(row["time"]) + 2_400_000)}).values()) for row in rows]
    (tmp_path / "late.csv").write_text("\n".join([header, *late, ""]))
    apps, nodes = read_applications(folder / "profiles"), (Nodes(NODES, PER_NODE),)
    soon = run_times("equal", apps, nodes, folder / "workload.csv")
    np.testing.assert_allclose(run_times("equal", apps, nodes, tmp_path / "late.csv"), soon)
    (tmp_path / "out.csv").write_text("server,from_s,to_s\n" + "".join(f"server{n},0,3600\n" for n in range(NODES)))
    options = ["--profiles", str(folder / "profiles"), "--cluster", str(folder / "cluster.yaml"), "--policy", "equal"]
    options += ["--outages", str(tmp_path / "out.csv"), "--interference", "none", "--jobs-out"]
    main(["simulate", "--workload", str(folder / "workload.csv"), *options, str(tmp_path / "a.csv")])
    main(["simulate", "--workload", str(tmp_path / "late.csv"), *options, str(tmp_path / "b.csv")])
    a, b = (np.loadtxt(tmp_path / f"{name}.csv", delimiter=",", skiprows=1, usecols=5) for name in "ab")
    np.testing.assert_allclose(a, b)
    assert a[0] > 3600


def test_fewer_jobs_than_schedulers(folder, tmp_path):
    (tmp_path / "one.csv").write_text("\n".join((folder / "workload.csv").read_text().splitlines()[:2]) + "\n")
    for law in ("none", "default"):
        main(
            ["simulate", "--profiles", str(folder / "profiles"), "--cluster", str(folder / "cluster.yaml")]
            + ["--policy", "equal", "--workload", str(tmp_path / "one.csv"), "--schedulers", "4", "--interference", law]
            + ["--jobs-out", str(tmp_path / f"{law}.csv")]
        )
    assert (tmp_path / "none.csv").read_text() == (tmp_path / "default.csv").read_text()


def test_what_makes_no_sense_is_one_line(folder, tmp_path):
    apps, path = read_applications(folder / "profiles"), tmp_path / "workload.csv"
    path.write_text(f"{HEADER}\na,1,small,1,16\nb,90000000,small,1,16\n")
    nodes = (Nodes(NODES, PER_NODE),)
    for said, call in {
        "at most 58,800,000 s after the first job, 980,000 rounds": lambda: run_times("equal", apps, nodes, path),
        "period_s: 0.0 should be": lambda: run_times("equal", apps, nodes, path, period_s=0.0),
        "restart_s: -1 should be": lambda: Rules(restart_s=-1),
        "interference: 1.5 should be": lambda: Rules(interference=1.5),
        "nodes: 1 of 0 GPUs": lambda: Nodes(1, 0),
        "nodes: there are none": lambda: run_times("equal", apps, (), folder / "workload.csv"),
        "lists: have no jobs": lambda: simulate(POLICIES["equal"], apps, [[]], nodes),
        "nodes of 16 GPUs: should have at most 9": lambda: run_times(
            "equal", apps, (Nodes(2, 16),), folder / "workload.csv"
        ),
    }.items():
        with pytest.raises(UserError, match=said):
            call()


def write_hole(folder, places, size, batch, suffix=""):
    """Profiles in which of `small` these placements and one size (nodes, GPUs) are measured, and a job; its file."""
    write_profiles(folder / "profiles", np.random.default_rng(3), kinds=(suffix.removeprefix("-"),))
    measured = folder / "profiles" / "small"
    for name, first, keys in (("placements", "placement", places), ("scalability", "num_nodes,num_replicas", [size])):
        rows = [f"{key},{b},0.1,0.01" for key in keys for b in (4, 16)]
        lines = [f"{first},local_bsz,step_time,sync_time", *rows, ""]
        (measured / f"{name}{suffix}.csv").write_text("\n".join(lines))
    path = folder / "workload.csv"
    path.write_text(f"{HEADER}\na,1,small,1,{batch}\n")
    return path


def test_a_hole_of_the_second_type_names_its_file(tmp_path):
    """Before: an IndexError, or another type's file."""
    path = write_hole(tmp_path, ("1", "2", "3", "4"), "2,8", 16, "-B")
    apps, nodes = read_applications(tmp_path / "profiles", ("A", "B")), (Nodes(2, 4, "A"), Nodes(2, 4, "B"))
    mine = AllocationPolicy("mine", POLICIES["equal"].allocate, most_free)
    with pytest.raises(UserError, match=r"placements-B\.csv: has a hole"):
        simulate(mine, apps, [read_workload(path, apps)], nodes)


def test_placements_are_found_in_every_rotation(tmp_path):
    write_profiles(tmp_path, np.random.default_rng(3))
    path = tmp_path / "small" / "placements.csv"
    before = read_applications(tmp_path)["small"].step_times[""]
    path.write_text(path.read_text().replace("\n24,", "\n42,"))
    after = read_applications(tmp_path)["small"].step_times[""]
    assert (2, 4) in before.listed and before.listed.keys() == after.listed.keys()


def test_a_profile_with_a_hole(tmp_path):
    """4 and 8 GPUs are measured, and nothing that 5 GPUs could lie between."""
    path = write_hole(tmp_path, ("1", "2", "3", "4", "44"), "3,12", 64)
    apps = read_applications(tmp_path / "profiles")
    with pytest.raises(UserError, match="has a hole, no step time for 5 GPUs; should cover all from 1 to"):
        simulate(POLICIES["equal"], apps, [read_workload(path, apps)], (Nodes(NODES, PER_NODE),))


def test_a_profile_with_a_hole_between_placements(tmp_path):
    """4 GPUs of one node are measured, and two nodes with 4 each: nothing that 3 and 1 lie between."""
    path = write_hole(tmp_path, ("1", "2", "3", "4"), "2,8", 16)
    apps = read_applications(tmp_path / "profiles")
    with pytest.raises(UserError, match=r"has a hole, no step time for 4 GPUs as 3\+1 on nodes"):
        simulate(POLICIES["tiresias"], apps, [read_workload(path, apps)], (Nodes(2, PER_NODE),))


def test_no_job_beyond_its_range_and_shares_of_policies_of_files(folder, tmp_path, capsys):
    """One GPU each: every job holds one GPU from its start to its end."""
    (tmp_path / "mine.py").write_text(
        "import jax.numpy as jnp\ndef one(view):\n    return jnp.where(view.active, view.least_gpus, 0)\n"
    )
    out = tmp_path / "jobs.csv"
    options = ["--profiles", str(folder / "profiles"), "--cluster", str(folder / "cluster.yaml")]
    options += ["--workload", str(folder / "workload.csv"), "--interference", "none"]
    main(["simulate", *options, "--policy", f"{tmp_path}/mine.py:one", "--jobs-out", str(out)])
    assert "jct_mean_s" in capsys.readouterr().out
    header, *rows = [line.split(",") for line in out.read_text().splitlines()]
    least = {
        job.name: job.least for job in read_workload(folder / "workload.csv", read_applications(folder / "profiles"))
    }
    for cells in rows:
        job = dict(zip(header, cells))
        held_s = float(job["finish_s"]) - float(job["start_s"])
        assert float(job["gpu_h"]) * 3600 == pytest.approx(least[job["name"]] * held_s) and job["restarts"] == "1"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--interference", "thin"], "unknown interference model 'thin'"),
        (["--interference", "none", "--load", "0.5"], "--load: has no effect with --profiles"),
        (["--interference", "none", "--device", "accelerator"], "--device: has no effect with --profiles"),
        (["--interference", "none", "--jobs-out", "jobs.parquet"], "--jobs-out jobs.parquet: should end in .csv"),
        (["--interference", "none", "--knows", "nothing"], "--knows nothing: with --profiles jobs know"),
        (["--interference", "none", "--knows", "history"], "--knows history: equal cannot go by what jobs predict"),
        (["--interference", "none", "--policy", "pack"], "'pack' is no policy for jobs with profiles; give tiresias"),
    ],
)
def test_mistakes_of_a_command(more, said, folder, capsys):
    options = ["--profiles", str(folder / "profiles"), "--cluster", str(folder / "cluster.yaml")]
    with pytest.raises(SystemExit) as stop:
        main(["simulate", *options, "--workload", str(folder / "workload.csv"), "--policy", "equal", *more])
    assert stop.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("view.nosuch", "mine fails in line 4: AttributeError: 'View' object has no attribute 'nosuch'"),
        ("None", "mine: returned NoneType, should be a number of GPUs for each job"),
        ("view.gpus[1:]", "mine: returned an array of shape"),
        ("view.gpus + 0.9", "mine: returned numbers of type float"),
        ("Allocation(gpus=view.gpus, order=view.age_s)", "should be order for each job, an integer"),
    ],
)
def test_a_policy_of_ones_own_that_is_wrong_is_told(body, said, folder, tmp_path, capsys):
    """Before: tracebacks, and fractions were cut off."""
    code = "from jaxsched.adaptive.view import Allocation\n\ndef mine(view):\n    return "
    (tmp_path / "mine.py").write_text(f"{code}{body}\n")
    options = ["--profiles", str(folder / "profiles"), "--cluster", str(folder / "cluster.yaml")]
    options += ["--workload", str(folder / "workload.csv"), "--interference", "none"]
    with pytest.raises(SystemExit) as stop:
        main(["simulate", *options, "--policy", f"{tmp_path}/mine.py:mine"])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and said in error and error.count("\n") == 1
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", *options, "--policies", "equal", "equal"])
    assert stop.value.code == 2 and "'equal' is given twice" in capsys.readouterr().err


def test_names_of_jobs_may_hold_anything():
    times, one = np.ones(1), Job(None, 'a,"b"', 0.0, "small", 1, 8, 1, 1, np.inf)
    header, line = csv.reader(write_jobs(Result([one], times, times, times, times)).splitlines())
    assert len(header) == len(line) == 9 and line[0] == 'a,"b"'


@pytest.mark.parametrize(
    ("cluster", "more", "said"),
    [
        (
            "servers: [{count: 2, groups: [4]}, {count: 2, groups: [4]}]\npartitions: {a: 2, b: 2}\n",
            ["--schedulers", "1"],
            "schedulers is 1, but the cluster's partitions have names (a, b)",
        ),
        (
            "servers: [{count: 2, groups: [4], gpu_type: T4}, {count: 2, groups: [4], gpu_type: V100}]\n",
            ["--schedulers", "1"],
            "policy equal: gives numbers of GPUs only, but the cluster has 2 GPU types",
        ),
    ],
)
def test_what_is_not_joined_yet_is_refused(cluster, more, said, folder, tmp_path, capsys):
    write_profiles(tmp_path / "profiles", np.random.default_rng(3), kinds=("", "T4", "V100"))
    (tmp_path / "cluster.yaml").write_text(cluster)
    options = ["--profiles", str(tmp_path / "profiles"), "--cluster", str(tmp_path / "cluster.yaml")]
    options += ["--workload", str(folder / "workload.csv"), "--policy", "equal", "--interference", "none", *more]
    with pytest.raises(SystemExit) as stop:
        main(["simulate", *options])
    assert stop.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(("placing", "waits"), [(whole_nodes, [1, 0, 1, 0, 1, 1]), (most_free, [1, 0, 0, 0, 1, 1])])
def test_a_number_that_a_job_may_not_have_is_none(placing, waits, folder, tmp_path):
    """Beyond its range, or no power of two and no whole nodes where these are placed: not another number instead."""
    path, apps = tmp_path / "workload.csv", read_applications(folder / "profiles")
    path.write_text("\n".join([MORE, *(f"n{i},1,large,2,256,2,4," for i in range(6)), ""]))

    def allocate(view):
        return jnp.where(view.now_s < 600, jnp.asarray([1, 2, 3, 4, 5, 8] + [0] * 10)[: view.gpus.shape[0]], 2)

    jobs, policy = [read_workload(path, apps)], AllocationPolicy("mine", allocate, placing)
    (result,) = simulate(policy, apps, jobs, (Nodes(8, PER_NODE),))
    assert result.start_s.tolist() == [600 if wait else 60 for wait in waits]


def test_outages_of_a_command(folder, tmp_path, capsys):
    """All nodes are out from 100 s to 1,000 s; whatever has not ended by then starts again at the next round."""
    options = ["--profiles", str(folder / "profiles"), "--cluster", str(folder / "cluster.yaml"), "--policy", "equal"]
    options += ["--workload", str(folder / "workload.csv"), "--interference", "none", "--jobs-out"]
    (tmp_path / "out.csv").write_text(
        "".join(["server,from_s,to_s\n", *(f"server{n},100,1000\n" for n in range(NODES))])
    )
    main(["simulate", *options, str(tmp_path / "whole.csv")])
    main(["simulate", *options, str(tmp_path / "broken.csv"), "--outages", str(tmp_path / "out.csv")])
    main(["simulate", *options, str(tmp_path / "drawn.csv"), "--failures", "0.2,0.1"])
    whole, broken, drawn = (
        np.loadtxt(tmp_path / f"{name}.csv", delimiter=",", skiprows=1, usecols=(4, 7))
        for name in ("whole", "broken", "drawn")
    )
    assert (whole[:, 0] < 1020).any()
    assert ((broken[:, 0] > 1050) | (broken[:, 0] < 120)).all() and (drawn[:, 0] != whole[:, 0]).any()


def test_outages_are_those_of_the_named_server(tmp_path):
    """Nodes stand by GPU type, servers as the file has them."""
    kinds = ("T4", "V100", "T4")
    servers = ", ".join(f"{{count: 1, groups: [4], gpu_type: {kind}}}" for kind in kinds)
    (tmp_path / "cluster.yaml").write_text(f"servers: [{servers}]\nschedulers: 1\n")
    (tmp_path / "out.csv").write_text("server,from_s,to_s\nserver1,1,2\nserver2,3,4\n")
    inventory = get_inventory(str(tmp_path / "cluster.yaml"), None)
    given = {"failures": None, "schedulers": None, "cluster": "c.yaml", "interference": "none"}
    command = SimpleNamespace(outages=str(tmp_path / "out.csv"), **given)
    outages = outages_of(command, inventory, [SimpleNamespace(submit_s=100.0)])
    (part,) = parts_of(command, inventory, outages)
    assert part.outages.server.tolist() == [2, 1] and part.outages.from_s.tolist() == [101, 103]
    command.schedulers = 2
    first, second = parts_of(command, inventory, outages)
    assert [kind.kind for kind in (*first.nodes, *second.nodes)] == ["T4", "V100", "T4"]
    assert (first.outages.server.tolist(), second.outages.server.tolist()) == ([1], [0])
    command.interference = "default"
    (both,) = parts_of(command, inventory, outages)
    assert both.outages.server.tolist() == [2, 1] and both.owner == (0, 1, 0) and both.schedulers == (0, 1)


def test_two_schedulers_are_two_worlds(folder, tmp_path):
    """Each has half of the nodes, one of which goes out, and every other job: all ends are the oracle's."""
    (tmp_path / "out.csv").write_text("server,from_s,to_s\nserver3,200,500\n")
    main(
        ["simulate", "--profiles", str(folder / "profiles"), "--cluster", str(folder / "cluster.yaml")]
        + ["--policy", "equal", "--workload", str(folder / "workload.csv"), "--interference", "none"]
        + ["--schedulers", "2", "--outages", str(tmp_path / "out.csv"), "--jobs-out", str(tmp_path / "jobs.csv")]
    )
    ends = dict(line.split(",")[:6:5] for line in (tmp_path / "jobs.csv").read_text().splitlines()[1:])
    known = {name: oracle.Application(folder / "profiles" / name) for name in APPS}
    jobs = read_workload(folder / "workload.csv", read_applications(folder / "profiles"))
    for part, outages in ((0, []), (1, [(NODES // 2 - 1, 200.0, 500.0)])):
        mine = [
            oracle.Job(job.name, job.submit_s, known[job.application], job.gpus, None, least=job.least, high=job.most)
            for job in jobs[part::2]
        ]
        expected = oracle.World(NODES // 2, PER_NODE, outages=outages).play(mine, allocation.equal, oracle.most_free)
        assert {job.name: float(ends[job.name]) for job in mine} == expected


def test_widths():
    assert widths(4, 16) == [1, 2, 4, 8, 12, 16] and widths(8, 8) == [1, 2, 4, 8] and widths(6, 12) == [1, 2, 4, 6, 12]
    assert widths(4, 300) == [1, 2, *range(4, 65, 4), 128, 256]
    for node in (1, 4, 6, 8):
        numbers = jnp.arange(1, 400)
        assert numbers[_whole(numbers, jnp.full(399, node))].tolist() == widths(node, 399)


def test_rigid_runs_do_without_this_package():
    """No other package imports it but in functions, and a run of rigid jobs calls none of those."""
    package = Path(jaxsched.__file__).parent
    for path in package.rglob("*.py"):
        if package / "adaptive" not in path.parents:
            names = [ast.unparse(node) for node in ast.parse(path.read_bytes()).body if "Import" in type(node).__name__]
            assert not any("jaxsched.adaptive" in name for name in names), path
    code = "import sys; from jaxsched.cli.main import main; main(['simulate', '--policy', 'pack', '--num-jobs', '20'])"
    code += "; assert not [name for name in sys.modules if name.startswith('jaxsched.adaptive')]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
