"""Published language models with the plans that NVIDIA publishes for them, and jobs that train them.

Sizes of models and plans are those of the files that `_PUBLISHED` names, in NVIDIA's repositories
NeMo-Framework-Launcher (`launcher_scripts/conf/training/`) and NeMo (`nemo/collections/llm/`): tensor, pipeline and
expert degrees, micro-batch, sequences of a replica in a step, and that replicas divide the optimizer's state. Widths of
gated feed-forward parts count 1.5 times. Ours is how many replicas a job has: as many as in the file times a power of
two, where a GPU of 80 GB holds its part, experts have the replicas that they need, and the job has at most `MOST_GPUS`
GPUs. Steps take as long as on A100s (docs/step-time.md).

Left out: context parallelism (Llama 3.1 405B and Mixtral 8x22B have 2 there), interleaved stages, and of DeepSeek-V2
its first dense layer, its shared experts and its attention with latent keys and values, which counts as a usual one.

Rows of a trace name such a model with a plan of their own (docs/howto/trace.md). Their model then has the name of the
plan: `llama2_70b/t8-d2-p4-e1-m1-g64`, and of how gradients are summed where that is no ring:
`llama2_70b/t8-d2-p4-e1-m1-g64-tree`. The trace itself is the file of these models (`get_catalogue`).
"""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from jaxtyping import Int, Int64

from jaxsched.errors import UserError
from jaxsched.io.cards import SHIPPED
from jaxsched.io.files import shorten
from jaxsched.io.schema import convert
from jaxsched.workload.models import ModelProfile
from jaxsched.workload.plans import Plan, Transformer, check_plan, profile_of
from jaxsched.workload.readers.cells import PLAN_COLUMNS, Cells
from jaxsched.workload.transformer import MOST, load_constants


class Planned(NamedTuple):
    """A model, and how a job of it is cut up."""

    name: str  # with the job's GPUs: llama2_70b_64
    model: Transformer
    plan: Plan


class _Published(NamedTuple):
    name: str
    hidden: int
    layers: int
    heads: int
    sequence: int
    plan: tuple[int, int, int, int]  # tensor, pipeline, expert, micro-batch
    each: int  # sequences of a replica in a step
    replicas: int  # of the file
    kv_heads: int | None = None
    mlp: int | None = None
    experts: tuple[int, int] = (1, 1)  # and how many a token goes through


MOST_GPUS = 1024
_GATED = 1.5
_PUBLISHED = (
    # gpt3/5b.yaml, gpt3/20b.yaml, gpt3/40b.yaml, gpt3/175b.yaml
    _Published("gpt3_5b", 4096, 24, 32, 2048, (1, 1, 1, 4), 16, 128),
    _Published("gpt3_20b", 6144, 44, 48, 2048, (4, 1, 1, 4), 16, 128),
    _Published("gpt3_40b", 8192, 48, 64, 2048, (8, 1, 1, 4), 16, 128),
    _Published("gpt3_175b", 12288, 96, 96, 2048, (4, 8, 1, 1), 64, 32),
    # llama/llama2_7b.yaml, llama/llama2_13b.yaml, llama/llama2_70b.yaml, llama/llama3_1_405b.yaml
    _Published("llama2_7b", 4096, 32, 32, 4096, (1, 1, 1, 1), 16, 128, mlp=11_008),
    _Published("llama2_13b", 5120, 40, 40, 4096, (2, 1, 1, 1), 16, 128, mlp=13_824),
    _Published("llama2_70b", 8192, 80, 64, 4096, (4, 4, 1, 1), 32, 64, 8, 28_672),
    _Published("llama3_1_405b", 16384, 126, 128, 8192, (8, 9, 1, 1), 63, 32, 16, 53_248),
    # mixtral/mixtral_8x7b.yaml; recipes/mixtral_8x22b.py, gpt/model/mixtral.py
    _Published("mixtral_8x7b", 4096, 32, 32, 4096, (1, 4, 8, 1), 16, 16, 8, 14_336, (8, 2)),
    _Published("mixtral_8x22b", 6144, 56, 48, 4096, (2, 4, 8, 1), 64, 8, 8, 16_384, (8, 2)),
    # recipes/deepseek_v2.py, gpt/model/deepseek.py
    _Published("deepseek_v2", 5120, 60, 128, 4096, (1, 4, 32, 1), 16, 32, mlp=1536, experts=(160, 6)),
)


@functools.cache
def published() -> tuple[Planned, ...]:
    """All models, each with all its numbers of replicas, the fewest first."""
    return tuple(one for row in _PUBLISHED for one in _cut_up(row))


def _transformer(row: _Published) -> Transformer:
    return Transformer(
        hidden=row.hidden,
        layers=row.layers,
        heads=row.heads,
        sequence=row.sequence,
        kv_heads=row.kv_heads,
        mlp=None if row.mlp is None else int(_GATED * row.mlp),
        experts=row.experts[0],
        top_k=row.experts[1],
    )


def _degrees(row: _Published) -> dict[str, Any]:
    return dict(zip(("tensor", "pipeline", "expert", "micro_batch"), row.plan))


def cut_up(name: str, gpus: int, given: Mapping[str, Any]) -> tuple[Transformer, Plan]:
    """A published model on so many GPUs, with the fields of the plan that are `given`, and others as published.

    Replicas are as many as there are GPUs for, each with as many sequences a step as published, unless given.

    Raises:
        UserError: if no such model is published, or it cannot be cut up so.
    """
    row = next((row for row in _PUBLISHED if row.name == name.strip().lower()), None)
    if row is None:
        known = ", ".join(row.name for row in _PUBLISHED)
        raise UserError(f"model: {shorten(name)!r} should be one of {known}; others have no plan in a trace")
    fields: dict[str, Any] = {**_degrees(row), "share_optimizer": True, **given}
    stages = fields["tensor"] * fields["pipeline"]
    fields.setdefault("data", max(gpus // stages, 1))
    fields.setdefault("global_batch", row.each * fields["data"])
    model, plan = _transformer(row), convert(Plan, fields, "plan")
    if plan.gpus != gpus:
        parts = f"tensor {plan.tensor} * data {plan.data} * pipeline {plan.pipeline}"
        raise UserError(f"plan: {parts} = {plan.gpus} GPUs; it should be the {gpus} of num_gpus")
    check_plan(model, plan)
    return model, plan


def _cut_up(row: _Published) -> list[Planned]:
    model, (tensor, pipeline, _, _) = _transformer(row), row.plan
    found, odd = [], row.replicas // (row.replicas & -row.replicas)
    for replicas in (odd << np.arange((MOST_GPUS // (odd * tensor * pipeline)).bit_length())).tolist():
        plan = Plan(global_batch=row.each * replicas, data=replicas, share_optimizer=True, **_degrees(row))
        if _fits(model, plan):
            found.append(Planned(f"{row.name}_{plan.gpus}", model, plan))
    return found


def _fits(model: Transformer, plan: Plan) -> bool:
    try:
        check_plan(model, plan)
    except UserError:  # too few replicas for the experts, or for the optimizer's state
        return False
    return True


@functools.cache
def llm_models() -> tuple[ModelProfile, ...]:
    """The same, as models of a catalogue."""
    card = load_constants(SHIPPED)
    return tuple(profile_of(*one, card) for one in published())


def entry_of(name: str) -> dict[str, Any]:
    """One of them as a file of models says it (`workload.catalogue`)."""
    name, model, plan = next(one for one in published() if one.name == name)
    return {"name": name, "transformer": _without_defaults(model), "plan": _without_defaults(plan)}


def _without_defaults(of: msgspec.Struct) -> dict[str, Any]:
    usual = dict(zip(of.__struct_fields__[::-1], of.__struct_defaults__[::-1]))
    fields = {name: getattr(of, name) for name in of.__struct_fields__}
    return {name: value for name, value in fields.items() if name not in usual or value != usual[name]}


def draw_planned(
    rng: np.random.Generator, models: tuple[ModelProfile, ...], count: int, most_gpus: int
) -> tuple[Int[np.ndarray, "J"], Int[np.ndarray, "J"]]:
    """Places in `models` of jobs with plans, and their GPUs: a size, evenly, then one of the models that have it.

    Args:
        rng: is drawn from.
        models: of a catalogue; those without a plan are left out.
        count: of the jobs.
        most_gpus: of a job.

    Raises:
        UserError: if no model has a plan of so few GPUs.
    """
    gpus = np.array([model.patterns.gpus if model.patterns else 0 for model in models])
    fits = np.flatnonzero((gpus > 0) & (gpus <= most_gpus))
    if not gpus.any():
        raise UserError("llm: no model has a plan; give models with plans (--models llm: the published ones)")
    if not len(fits):
        least = gpus[gpus > 0].min()
        raise UserError(
            f"llm: the smallest plan of a model has {least} GPUs, a quarter of a partition {most_gpus}; take a larger "
            "cluster, or fewer schedulers"
        )
    sizes, size = np.unique(gpus[fits], return_inverse=True)
    chance = 1 / np.bincount(size)[size] / len(sizes)
    place = rng.choice(fits, size=count, p=chance)
    return place, gpus[place]


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
