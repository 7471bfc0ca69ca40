"""The lists of CONTRIBUTING.md, "What to touch": each is followed in a copy, touches no other file, and is enough."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CARRIED = ("jaxsched", "tests", "docs", "checkpoints", "configs", "examples", "pyproject.toml", "README.md")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A change, and what holds once it is made."""

    title: str  # of its list on the page
    most: int  # files
    edits: dict[str, dict[str, str]]  # by file: what stands there once, and what comes in its place; "" makes a file
    check: str  # Python that fails unless the change has arrived everywhere
    tests: tuple[str, ...] = ()  # that must still pass
    drawn: tuple[str, ...] = ()  # files that `check` makes


METRIC = Recipe(
    title="A metric",
    most=1,
    edits={
        "jaxsched/evaluation/metrics.py": {
            ")\nCOLUMNS = ": '    Metric("widest_gang", lambda run: float(run.gpus.max()), "GPUs", "widest"),\n'
            ")\nCOLUMNS = "
        }
    },
    check="""
import jaxsched
found = jaxsched.compare("leaf-spine-2", "philly-like", ["pack", "first-fit"], num_jobs=20, seeds=2)
assert "widest" in str(found)
rows = found.to_json()["policies"]
assert all(row["widest_gang"] >= 1 for row in rows.values())
""",
    tests=("tests/evaluation/test_job_metrics.py", "tests/evaluation/test_report.py"),
)
RULE = Recipe(
    title="A placement rule",
    most=2,
    edits={
        "jaxsched/policies/rules.py": {
            "RULES: dict[str, Rule] = {\n": "def scattered(key: PRNGKeyArray, view: View, job: JobSpec) -> Array:\n"
            '    """Groups with most free GPUs first."""\n'
            "    return fill_in_order(-view.free, capacity(view, job), job.workers)\n\n\n"
            "RULES: dict[str, Rule] = {\n",
            '    "random": random,\n': '    "random": random,\n    "scattered": scattered,\n',
        },
        "jaxsched/cli/evaluate.py": {"contention-aware, random,": "contention-aware, random, scattered,"},
    },
    check="""
import jaxsched
found = jaxsched.compare("leaf-spine-2", "philly-like", ["scattered:sjf+backfill", "pack"], num_jobs=20, seeds=1)
assert [row.outcomes[0].stats.engine for row in found.rows] == ["jax", "compiled"]
assert all(row.baseline and not row.outcomes[0].unfinished for row in found.rows)
""",
    tests=("tests/cli/test_mistakes.py::test_the_help_names_all_policies_and_options", "tests/policies/test_spec.py"),
)
SWITCH = Recipe(
    title="A switch that a policy reads",
    most=5,
    edits={
        "jaxsched/env/queues.py": {
            "    window: int = 1": "    narrow: bool = False  # gangs start after all others\n    window: int = 1"
        },
        "jaxsched/env/reservations.py": {
            "    if not queue.reserve and state": "    if queue.narrow:\n"
            "        single = (state.jobs.workers[jnp.maximum(state.queue, 0)] == 1) & (state.queue >= 0)\n"
            "        can_start &= single | ~single.any(-1, keepdims=True)\n"
            "    if not queue.reserve and state"
        },
        "jaxsched/cli/evaluate.py": {
            "  consolidate              a gang": "  narrow                   gangs start after all others\n"
            "  consolidate              a gang"
        },
        "docs/semantics.md": {
            "**Reservation** (": "With `narrow` jobs of one worker start first.\n\n**Reservation** ("
        },
    },
    check="""
import numpy as np, jaxsched
from jaxsched.policies.registry import parse
assert parse("pack:sjf+backfill+narrow").spec.queue.narrow and not parse("pack:sjf+backfill").spec.queue.narrow
cluster = jaxsched.get_cluster("leaf-spine-1", 1)
jobs = jaxsched.make_job_list(np.zeros(9), 600.0, [4] + [1] * 8)
found = jaxsched.compare(cluster, jobs, ["pack:backfill", "pack:backfill+narrow"])
first, second = (row.outcomes[0].start_s for row in found.rows)
assert first[0] == 0 and second[0] > 0 and (second[1:] == 0).all()
assert [row.outcomes[0].stats.engine for row in found.rows] == ["compiled", "jax"]
""",
    tests=("tests/cli/test_mistakes.py::test_the_help_names_all_policies_and_options", "tests/policies/test_spec.py"),
)
TOPOLOGY = Recipe(
    title="A topology",
    most=4,
    edits={
        "jaxsched/cluster/topologies.py": {
            "# Each takes the number of servers": ""
            "def pairs(num_servers: int, nic_gbits_s: float = NIC_GBITS_S) -> Topology:\n"
            '    """Racks of two servers."""\n'
            "    return leaf_spine(num_servers, 2, nic_gbits_s)\n\n\n"
            "# Each takes the number of servers",
            '    "rail": rail,\n': '    "rail": rail,\n    "pairs": pairs,\n',
        },
        "jaxsched/cli/cluster.py": {"rail-N with N servers": "rail-N, pairs-N with N servers"},
        "docs/topologies.md": {
            "## Unlike servers": "## Pairs: `pairs-N`\n\n![pairs-64](images/topologies/pairs-64.svg)\n\n"
            "## Unlike servers"
        },
    },
    check="""
import re
from pathlib import Path
from jaxsched.cli.main import main
from jaxsched.cluster.presets import get_cluster, get_inventory
from jaxsched.cluster.measures import figures
assert get_cluster("pairs-8").shape[0] == 2
main(["cluster", "draw", "pairs-64", "--out", "docs/images/topologies/pairs-64.svg"])
f, page = figures(get_inventory("pairs-64")), Path("docs/topologies.md")
row = f"| `pairs-64` | {f.servers} | {f.racks} | {f.switches} | {f.links} | "
row += f"{f.bisection_gbits_s:,.1f} | {f.oversubscription:.2f} |"
page.write_text(re.sub("(?m)^(. `rail-64` .*)$", lambda m: m[1] + "\\n" + row, page.read_text()))
Path("cluster.yaml").write_text("servers: [{count: 8}]\\ntopology: {kind: pairs}")
assert get_cluster("cluster.yaml").shape[0] == 2
Path("cluster.yaml").unlink()
""",
    tests=(
        "tests/cluster/test_topology_docs.py",
        "tests/cluster/test_topology_families.py::test_a_thousand_servers_can_be_built",
        "tests/cli/test_mistakes.py::test_the_help_names_all_presets",
    ),
    drawn=("docs/images/topologies/pairs-64.svg",),
)
RECIPES = {"metric": METRIC, "rule": RULE, "switch": SWITCH, "topology": TOPOLOGY}


def listed(title: str) -> set[str]:
    """The files of a list of the page, its tests left out."""
    section = PAGE.split(f"**{title}**", 1)[1].split("\n\n", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("- ") and not line.startswith("- test")]
    return {path for line in lines for path in re.findall(r"`([\w./-]+/[\w.-]+\.\w+)`", line)[:1]}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_names_the_files_that_the_change_touches(name):
    recipe = RECIPES[name]
    touched = {path.replace("pairs", "MINE") for path in (*recipe.edits, *recipe.drawn)}
    assert touched == listed(recipe.title) and len(touched) <= recipe.most


@pytest.mark.long
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_enough(name, tmp_path):
    recipe, copy = RECIPES[name], tmp_path / "tree"
    copy.mkdir()
    for part in CARRIED:
        here = ROOT / part
        if here.is_dir():
            shutil.copytree(here, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(here, copy / part)
    for path, old, new in [(path, *edit) for path, edits in recipe.edits.items() for edit in edits.items()]:
        text = (copy / path).read_text(encoding="utf-8") if old else ""
        assert not old or text.count(old) == 1, f"{path}: {old!r} should stand there once"
        (copy / path).write_text(text.replace(old, new) if old else new, encoding="utf-8")
    before = contents(copy)
    for arguments in (["-c", recipe.check], ["-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *recipe.tests]):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    after = contents(copy)
    changed = {path for path in after if after[path] != before.get(path)}
    assert changed <= {*recipe.edits, *recipe.drawn}, "the check has written something else"


def contents(tree: Path) -> dict[str, bytes]:
    files = [path for path in tree.rglob("*") if path.is_file() and not {".cache", ".hypothesis"} & {*path.parts}]
    return {str(path.relative_to(tree)): path.read_bytes() for path in files}
