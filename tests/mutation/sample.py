"""Do the tests notice a changed line? python -m tests.mutation.sample COUNT [SEED] [PART ...].

Draws changes of operators, comparisons and constants from the rooms that every result rests on, each tried in a copy of
the checkout by those tests of its room that `make test` runs. The compiled loop is played as Python.
A change that no test notices is printed with its line.
"""

import ast
import functools
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LIMIT_S = 400  # CPU seconds of the tests of one change; what takes longer counts as neither
QUICK = ("-m", "not long and not kube")
# What fails soonest stands first.
TESTS = {
    "dynamics": ("tests/dynamics", "tests/env/test_oracle.py", "tests/env/test_fractions.py"),
    "env": (
        "tests/env/test_illegal_actions.py",
        "tests/env/test_queueing.py",
        "tests/env/test_oracle.py",
        "tests/env/test_preemption.py",
        "tests/env/test_failures.py",
        "tests/simulation/test_failing_servers.py",
        "tests/env/test_history.py",
        "tests/env/test_fractions.py",
        "tests/env/test_contract.py",
        "tests/env/test_rollout.py",
        "tests/env/test_observation.py",
        "tests/env/test_turns.py",
        "tests/env/test_invariants.py",
        "tests/env/test_drawing.py",
        "tests/env/test_checks.py",
        "tests/env/test_estimates.py",
    ),
    "event_loop": (
        *("-p", "tests.mutation.in_python"),
        "tests/simulation/test_compiled_oracle.py",
        "tests/simulation/test_compiled_runs.py",
        "tests/simulation/test_failing_servers.py",
    ),
}
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


class Change(NamedTuple):
    """One place of a module, and what stands there instead."""

    part: str
    path: Path
    line: int
    place: int  # in the order of `places`
    before: str
    after: str


def places(tree: ast.Module) -> list[ast.AST]:
    """Nodes that can be changed: not those of annotations, texts and messages."""
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        inner = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        inner += (
            [node] if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom) else []
        )
        left_out.update(below for one in inner if one is not None for below in ast.walk(one))
    found: list[ast.AST] = []
    for node in ast.walk(tree):
        swappable = isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS
        swappable |= isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS
        number = isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float)
        negation = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert)
        if (swappable or number or negation) and node not in left_out:
            found.append(node)
    return found


def changed(node: ast.AST) -> None:
    """Change the node where it stands."""
    if isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1  # pyright: ignore


def text_of(path: Path, place: int | None) -> str:
    """The module, with one place changed."""
    tree = ast.parse(path.read_text())
    if place is not None:
        changed(places(tree)[place])
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def all_changes(parts: list[str]) -> list[Change]:
    """Every change of every module of these rooms; those that change no text are left out."""
    changes = []
    for part in parts:
        for path in sorted((ROOT / "jaxsched" / part).rglob("*.py")):
            plain = text_of(path, None).splitlines()
            for place, node in enumerate(places(ast.parse(path.read_text()))):
                lines = text_of(path, place).splitlines()
                for before, after in zip(plain, lines):
                    if before != after:
                        line = getattr(node, "lineno", 0)
                        changes.append(Change(part, path.relative_to(ROOT), line, place, before.strip(), after.strip()))
                        break
    return changes


def verdict(change: Change, copy: Path) -> str:
    """Whether a test of the room fails with the change made in `copy`: noticed, SURVIVED or unknown (too slow)."""
    target = copy / change.path
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S + 10))
    target.write_text(text_of(ROOT / change.path, change.place))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--benchmark-disable"]
    environment = os.environ | {"PYTHONPATH": str(copy), "CHECK_SHAPES": "0"}
    try:
        done = subprocess.run(
            [*command, *QUICK, *TESTS[change.part]], cwd=copy, env=environment, capture_output=True, preexec_fn=limit
        )
        if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return "unknown"
        return "noticed" if done.returncode else "SURVIVED"
    finally:
        shutil.copyfile(ROOT / change.path, target)


def main(count: int, seed: int, parts: list[str]) -> None:
    changes = all_changes(parts)
    sample = random.Random(seed).sample(changes, min(count, len(changes)))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__", "runs"))
        verdicts: list[str] = []
        for number, change in enumerate(sample, 1):
            began = time.monotonic()
            verdicts.append(verdict(change, copy))
            what = f"{change.path}:{change.line}: {change.before}  ->  {change.after}"
            took = time.monotonic() - began
            print(f"{number} {verdicts[-1]:8} {took:.0f} s  {what}", flush=True)
        unknown, died = [verdicts.count(one) for one in ("unknown", "noticed")]
        print(f"{died} of {len(sample)} noticed, {unknown} unknown; {len(changes)} changes are possible")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, sys.argv[3:] or [*TESTS])
