"""What `import jaxsched` gives, and what comes with the package."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxsched
from jaxsched import shipped
from jaxsched.env.queues import Discipline
from jaxsched.errors import UserError
from jaxsched.policies.registry import checkpoints, parse

ROOT = Path(__file__).parents[1]


def test_importing_opens_nothing():
    code = "import sys, jaxsched\nassert not {'jax', 'numpy'} & set(sys.modules), 'too much'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_every_name_is_where_the_stub_says():
    stub = (ROOT / "jaxsched/__init__.pyi").read_text()
    said = dict(re.findall(r"^from (\S+) import (\w+) as", stub, re.M)[i][::-1] for i in range(stub.count("import ")))
    assert said == vars(jaxsched)["_HOMES"]
    for name, module in said.items():
        assert getattr(jaxsched, name) is getattr(importlib.import_module(module), name)
    assert set(dir(jaxsched)) == {"__version__", *said}
    assert all(f"`{name}`" in str(jaxsched.__doc__) for name in said)
    with pytest.raises(AttributeError, match="no attribute 'nix'; it has"):
        getattr(jaxsched, "nix")  # noqa: B009


def emptiest_first(key, view, job):
    return jaxsched.fill_in_order(-view.free, jaxsched.capacity(view, job), job.workers)


def test_a_policy_is_put_together_from_a_rule_and_a_queue():
    assert jaxsched.policy("pack", order="sjf", backfill=True).spec == parse("pack:sjf+backfill").spec
    assert jaxsched.policy("pack:sjf", name="mine").name == "mine"
    assert jaxsched.policy(emptiest_first).name == "emptiest_first"
    own = jaxsched.policy("pack", order=lambda state, params: -state.queue, name="last come")
    assert own.name == "last come" and callable(own.spec.queue.order) and not own.is_rule
    with pytest.raises(UserError, match="forward: 'far' should be one of stay"):
        jaxsched.policy("pack", forward="far")
    with pytest.raises(UserError, match="takes no 'order' here; with one the rule should be a function"):
        jaxsched.policy("quickstart", order="sjf")
    whole = jaxsched.policy("pack", queue=Discipline(order="las", preempt=True, hysteresis=0.5, consolidate=True))
    assert whole == parse("pack:las+consolidate+preempt+h0.5")
    assert jaxsched.policy("pack", order=Discipline(order="sjf", backfill=True)) == parse("pack:sjf+backfill")
    assert jaxsched.policy("pack", order="las", preempt=True) == parse("pack:las+preempt")
    for given, (value, words) in {"quue": (1, "policy: unknown 'quue'; it may have queue, forward")}.items():
        with pytest.raises(UserError, match=words):
            jaxsched.policy("pack", **{given: value})
    assert jaxsched.policy("match", backfill=True).spec == jaxsched.policy("match").spec, "by its own order"
    assert jaxsched.policy("greedy-wait", order="fifo").name == "greedy-wait:fifo"


def test_a_comparison_by_names_prints_a_table():
    found = jaxsched.compare("leaf-spine-2", "philly-like", ["pack", "first-fit"], num_jobs=30, seeds=1)
    first, *_ = repr(found).splitlines()
    assert first.startswith("policy") and "first-fit" in str(found) and "30 arrived = 30 finished" in str(found)
    assert found.config["workload"] == "philly-like" and found.config["cluster"] == "leaf-spine-2"
    with pytest.raises(UserError, match="num_jobs: only for jobs by name"):
        jaxsched.compare("leaf-spine-2", found.rows[0].outcomes[0].jobs, ["pack"], num_jobs=30)
    again = jaxsched.compare("leaf-spine-2", found.rows[0].outcomes[0].jobs, "pack", config={"seeds": 7})
    np.testing.assert_array_equal(again.rows[0].outcomes[0].finish_s, found.rows[0].outcomes[0].finish_s)


def test_shipped_checkpoints_are_policies_by_name():
    assert checkpoints() == ("default", "quickstart")
    assert parse("quickstart").name == "quickstart" and parse("default").name == "default"
    assert shipped.find(shipped.CHECKPOINTS, "../quickstart") is None
    assert shipped.find(shipped.CHECKPOINTS, "a" * 5000) is None
    assert shipped.find(shipped.EXAMPLES, "trace.csv") == ROOT / "examples/trace.csv"


def test_policies_from_a_file(tmp_path):
    assert parse(f"{ROOT}/examples/policy.py:mine").name == "mine"
    found = parse(f"{ROOT}/examples/policy.py:emptiest_first")
    assert found.spec is not None and callable(found.spec.rule) and not found.is_rule
    (tmp_path / "bad.py").write_text("1 / 0\n")
    wrong = "def mine(key, view, job):\n    return 3\ndef no(*_):\n    assert False\ndef two(job, view): ...\n"
    (tmp_path / "wrong.py").write_text(wrong)
    for name, words in {
        "mine": "rule mine: returned int, should be the workers",
        "no": "rule no fails in line 4: AssertionError",
        "two": r"rule two fails when called \(line 5\): TypeError: .* takes 2 positional arguments but 3",
    }.items():
        with pytest.raises(UserError, match=words):
            jaxsched.compare("leaf-spine-2", "philly-like", [f"{tmp_path}/wrong.py:{name}"], num_jobs=5)
    for spec, words in {
        "none.py:mine": "no such file none.py",
        f"{ROOT}/examples/policy.py:nix": "has no function or Policy 'nix'; it has emptiest_first",
        f"{tmp_path}/bad.py:mine": "bad.py fails: ZeroDivisionError",
    }.items():
        with pytest.raises(UserError, match=re.escape(words)):
            parse(spec)
