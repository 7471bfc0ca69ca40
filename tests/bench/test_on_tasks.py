"""The table of a sweep's policies on tasks: which rule is the best, means over seeds and worlds, seed by seed."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def on_tasks(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("on_tasks")


def test_ratios_are_to_the_best_rule_and_to_the_same_seed(on_tasks):
    rules = {"poor": [600.0, 600.0], "good": [120.0, 240.0]}
    made = {("whole", 0): [120.0, 240.0], ("whole", 1): [240.0, 480.0]}
    made |= {("less", 1): [480.0, 960.0], ("less", 0): [240.0, 480.0]}  # twice as much as with the same seed
    rows = [{"task": "task-tiny", "variant": "rules", "seed": None, "jct_s": rules}]
    rows += [{"task": "task-tiny", "variant": name, "seed": seed, "jct_s": jct} for (name, seed), jct in made.items()]
    lines = on_tasks.table(rows, "whole")
    assert lines[0] == "| variant | task-tiny | IQM of all | over whole |"
    assert lines[2].startswith("| whole | 1.500 | 1.500 [") and lines[2].endswith("| 1 |")
    assert lines[3].startswith("| less | 3.000 | 3.000 [") and lines[3].endswith("| 2.000 (2.00 to 2.00) |")
    assert lines[-1] == "The best rules: task-tiny: `good`, 3.0 min"
