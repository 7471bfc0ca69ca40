"""What `--on` and `--ask` refuse: one line, before anything is run."""

import shutil
import sys
import types

import pytest
import yaml

from jaxsched.errors import UserError
from jaxsched.executors import choose_executor
from tests.executors.conftest import needs
from tests.support.commands import refused
from tests.sweeps.test_sweep import BASE, TESTS

MISTAKES = [  # --on, --ask, what the message must say
    ("rya", [], ["--on rya", "ray:ADDRESS"]),
    ("local:8", [], ["--on local:8"]),
    ("local:", [], ["--on local:"]),
    ("ray:", [], ["--on ray: nothing follows the colon; should", "ray:ADDRESS"]),
    ("slurm:", [], ["--on slurm:", "slurm:local"]),
    ("local", ["num_cpus=2"], ["--ask", "--on ray"]),
    ("ray", ["num_cpus"], ["num_cpus", "KEY=VALUE"]),
    ("ray", ["num_cpus=1", "num_cpus=2"], ["twice"]),
    ("ray", ["cpus=2"], ["cpus=2", "num_gpus"]),
    ("ray", ["num_cpus=many"], ["num_cpus=many", "number"]),
    ("ray:somewhere", [], ["ray:somewhere", "HOST:PORT"]),
    ("ray:127.0.0.1:1", [], ["127.0.0.1:1", "no cluster answers", "ray start --head"]),
    ("slurm:remote", [], ["slurm:remote", "slurm:local"]),
    ("slurm:local", ["nope=1"], ["--ask", "nope"]),
    ("slurm:local", ["timeout_min=long"], ["--ask", "timeout_min"]),
]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setattr("jaxsched.cli.main.enable_cache", lambda: None)


@pytest.fixture
def sweep(tmp_path):
    """The file of a sweep."""
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"base": "base.yaml", "out": str(tmp_path / "out"), "evaluate": TESTS}))
    return path


@pytest.mark.parametrize(("on", "asks", "words"), MISTAKES, ids=[f"{on} {asks}" for on, asks, _ in MISTAKES])
def test_a_mistake_is_one_line_and_leaves_nothing(capsys, sweep, on, asks, words):
    for kind, package in (("ray:", "ray"), ("slurm", "submitit")):
        if on.startswith(kind) and not on.endswith(":"):
            needs(package)
    more = ["--ask", *asks] if asks else []
    message = refused(capsys, "sweep", sweep, "--on", on, *more)
    assert all(word in message for word in words), message
    assert not (sweep.parent / "out").exists()


@pytest.mark.skipif(shutil.which("sbatch") is not None, reason="this machine has Slurm")
def test_without_slurm_there_are_no_jobs(tmp_path):
    needs("submitit")
    with (
        pytest.raises(UserError, match=r"^--on slurm: this machine has no sbatch"),
        choose_executor("slurm", [], tmp_path),
    ):
        pass


@pytest.mark.parametrize(("on", "package", "extra"), [("ray", "ray", "ray"), ("slurm", "submitit", "slurm")])
def test_a_missing_extra_is_named(monkeypatch, tmp_path, on, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with (
        pytest.raises(UserError, match=rf"pip install 'jaxsched\[{extra}\]'"),
        choose_executor(on, [], tmp_path / "jobs"),
    ):
        pass
    assert not (tmp_path / "jobs").exists()


def test_a_token_that_is_missing_is_one_line(monkeypatch, tmp_path):
    """Ray's error is neither of Python's nor a RuntimeError. Before: a traceback."""
    general = type("RayError", (Exception,), {})
    failure = type("AuthenticationError", (general,), {})("Token authentication is enabled,\nbut no token")
    ray = types.SimpleNamespace(init=lambda **_: (_ for _ in ()).throw(failure))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.exceptions", types.SimpleNamespace(RayError=general))
    with pytest.raises(UserError, match="enabled, but no token"), choose_executor("ray", [], tmp_path):
        pass


def test_more_memory_than_there_is(capsys, tmp_path, sweep):
    content = yaml.safe_load(sweep.read_text()) | {"variants": {"huge": {"ppo.num_envs": 65536, "ppo.steps": 4096}}}
    sweep.write_text(yaml.safe_dump(content))
    message = refused(capsys, "sweep", sweep)
    assert "program 1, huge seed=0: needs at least" in message and "fewer ppo.num_envs" in message
    assert not (tmp_path / "out").exists()
