"""A learned allocation is played by its folder: with no weights it is the rule, with others it is not; mistakes."""

import numpy as np
import pytest

from jaxsched.adaptive import learned
from jaxsched.adaptive.compare import find_policy
from jaxsched.adaptive.view import whole_nodes
from jaxsched.cli.main import main
from tests.adaptive.files import NODES, PER_NODE, write_profiles, write_workload


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("learned")
    write_profiles(made / "profiles", np.random.default_rng(3), kinds=("", "T4", "V100"))
    write_workload(made / "workload.csv", np.random.default_rng(5))
    (made / "one.yaml").write_text(f"servers: [{{count: {NODES}, groups: [{PER_NODE}]}}]\nschedulers: 1\n")
    types = ", ".join(f"{{count: 2, groups: [{PER_NODE}], gpu_type: {kind}}}" for kind in ("T4", "V100"))
    (made / "two.yaml").write_text(f"servers: [{types}]\nschedulers: 1\n")
    drawn = np.random.default_rng(1).normal(size=learned.NUMBERS) * 3
    learned.save(made / "none", {learned.KINDS[0]: [0.0] * learned.NUMBERS})
    learned.save(made / "drawn", {learned.KINDS[0]: drawn.tolist()})
    return made


def ends_of(folder, out, policy, cluster="one.yaml"):
    options = ["--profiles", str(folder / "profiles"), "--workload", str(folder / "workload.csv")]
    options += ["--cluster", str(folder / cluster), "--interference", "none", "--policy", policy]
    main(["simulate", *options, "--jobs-out", str(out)])
    return np.loadtxt(out, delimiter=",", skiprows=1, usecols=4)


@pytest.mark.slow
def test_without_weights_it_is_the_rule(folder, tmp_path):
    rule, none, drawn = (
        ends_of(folder, tmp_path / f"{i}.csv", name)
        for i, name in enumerate(("pollux", str(folder / "none"), str(folder / "drawn")))
    )
    np.testing.assert_array_equal(rule, none)
    assert (rule != drawn).any()


def test_mistakes(folder, tmp_path, capsys):
    """It has not learned several types; its card has too few numbers."""
    learned.save(tmp_path / "short", {learned.KINDS[0]: [0.0]})
    for policy, cluster, said in (
        (folder / "none", "two.yaml", "none: has learned one GPU type, the cluster has several GPU types"),
        (tmp_path / "short", "one.yaml", f"should be of type list of length >= {learned.NUMBERS}"),
    ):
        with pytest.raises(SystemExit) as stop:
            ends_of(folder, tmp_path / "jobs.csv", str(policy), cluster)
        assert stop.value.code == 2 and said in capsys.readouterr().err


def test_other_commands_say_what_it_is(folder, capsys):
    """It is checked; where jobs have no profiles, and where it would be learned anew, it is refused in one line."""
    main(["check", str(folder / "none")])
    assert "a learned allocation, a policy of jobs with profiles" in capsys.readouterr().out
    for words, said in (
        (["simulate", "--policy", str(folder / "none")], "is for jobs with profiles; give --profiles DIR"),
        (["reproduce", str(folder / "none")], "learned from published workloads, which are not part of jaxsched"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2 and said in capsys.readouterr().err


def test_the_shipped_one_is_found_by_its_name():
    found = find_policy("allocation")
    assert found.name == "allocation" and found.placing is whole_nodes
