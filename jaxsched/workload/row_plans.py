"""Plans that rows of a trace name: a published model, and how the job is cut up (docs/howto/trace.md).

Such a job's model has the name of the plan: `llama2_70b/t8-d2-p4-e1-m1-g64`, and of how gradients are summed where that
is no ring: `llama2_70b/t8-d2-p4-e1-m1-g64-tree`. The trace itself is the file of these models (`get_catalogue`).
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from jaxsched.errors import UserError
from jaxsched.io.cards import SHIPPED
from jaxsched.workload.llm import cut_up
from jaxsched.workload.models import ModelProfile
from jaxsched.workload.plans import Plan, profile_of
from jaxsched.workload.readers.cells import Cells
from jaxsched.workload.readers.source import PLAN_COLUMNS
from jaxsched.workload.transformer import MOST, load_constants

*NUMBERS, REDUCED = PLAN_COLUMNS
LETTERS = dict(zip(NUMBERS, "tdpemg", strict=True))  # in a name; how gradients are summed follows
_NAME = re.compile(r"([^/]+)/" + "-".join(f"{letter}([0-9]+)" for letter in LETTERS.values()) + r"(?:-([a-z]+))?")


def name_of(model: str, plan: Plan) -> str:
    """The name of a plan of a published model."""
    parts = [f"{letter}{getattr(plan, field)}" for field, letter in LETTERS.items()]
    return f"{model}/{'-'.join(parts + [plan.all_reduce] * (plan.all_reduce != 'ring'))}"


def columns_of(name: str) -> dict[str, Any]:
    """What `name_of` put into a name, `model` and columns; the name as `model`, and none, for any other name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return {"model": name, **dict.fromkeys(PLAN_COLUMNS, "")}
    model, *numbers, reduced = found.groups()
    return {"model": model, **dict(zip(LETTERS, map(int, numbers))), REDUCED: reduced or "ring"}


def profile_named(name: str) -> ModelProfile:
    """The model of such a name."""
    columns = columns_of(name)
    model, gpus = columns.pop("model"), columns["tensor"] * columns["data"] * columns["pipeline"]
    return profile_of(name, *cut_up(model, gpus, columns), load_constants(SHIPPED))


def plan_names(cells: Cells, models: Sequence[str], gpus: Int64[np.ndarray, "N"]) -> Sequence[str]:
    """`models`, and where a row has a plan its name. A plan that cannot be is a mistake."""
    columns = {field: cells.given(field, minimum=1, maximum=MOST) for field in LETTERS}
    reduced, names, known = cells.labels(REDUCED), list(models), {}
    there = np.any([column >= 0 for column in columns.values()], 0) | cells.where(REDUCED, bool)
    for i in np.flatnonzero(there & cells.keep).tolist():
        given = {field: int(column[i]) for field, column in columns.items() if column[i] >= 0}
        given |= {REDUCED: reduced[i]} if reduced[i] else {}
        key = (models[i], int(gpus[i]), *given.items())
        if key not in known:
            try:
                known[key] = name_of(models[i].strip().lower(), cut_up(models[i], int(gpus[i]), given)[1])
            except UserError as error:
                known[key] = error
        if isinstance(known[key], UserError):
            cells.broken(i, known[key])
        else:
            names[i] = known[key]
    return names
