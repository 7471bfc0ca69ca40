"""Random plans, and cases whose jobs have some (docs/semantics.md, section 3, "Plans")."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from jaxsched.workload.models import CATALOGUE, ModelProfile
from jaxsched.workload.patterns import EXPERT_GRADIENTS, GRADIENTS, Patterns
from tests.support.random_cases import Case

SIZES = tuple(sorted({w * g for w in (1, 2, 3, 4, 5, 8, 16) for g in (1, 2, 4)}))  # of `random_cases.random_jobs`


def patterns(
    tensor=1, data=1, pipeline=1, expert=1, nbytes=(0.0, 0.0, 0.0, 0.0, 0.0), summed=(0.0, 0.0), tree=False
) -> Patterns:
    """As `workload.plans.patterns_of`, with these bytes."""
    stride = (1, tensor, tensor * expert, tensor * data, tensor)
    size = (tensor, data, data // expert, pipeline, expert)
    return Patterns(tensor * data * pipeline, stride, size, nbytes, summed, tree)


def random_patterns(rng: np.random.Generator, gpus: int, least: float, most: float, rings: bool = False) -> Patterns:
    """A plan for so many GPUs, each of its messages from `least` to `most` bytes; half of them without `rings`."""
    divisors = lambda whole: [x for x in range(1, whole + 1) if whole % x == 0]
    tensor = int(rng.choice(divisors(gpus)))
    data = int(rng.choice(divisors(gpus // tensor)))
    expert, pipeline = int(rng.choice(divisors(data))), gpus // tensor // data
    sizes = patterns(tensor, data, pipeline, expert).size
    nbytes = [float(np.exp(rng.uniform(np.log(least), np.log(most)))) if size > 1 else 0.0 for size in sizes]
    summed, tree = (0.0, 0.0), bool(rng.integers(2))
    if not rings and rng.integers(2):
        summed, nbytes[GRADIENTS], nbytes[EXPERT_GRADIENTS] = (nbytes[GRADIENTS], nbytes[EXPERT_GRADIENTS]), 0.0, 0.0
    return patterns(tensor, data, pipeline, expert, tuple(nbytes), summed, tree)


def with_plans(rng: np.random.Generator, case: Case) -> Case:
    """The same case, most jobs with a plan: one for each number of GPUs, of a model drawn for it."""
    models = [_planned(rng, size) for size in SIZES]
    planned = (rng.random(len(case.jobs)) < 0.7) & (case.jobs.milli == 1000)
    place = np.searchsorted(SIZES, case.jobs.num_gpus)
    jobs = dataclasses.replace(
        case.jobs,
        model=np.where(planned, len(CATALOGUE) + place, case.jobs.model).astype(np.int32),
        ps=np.where(planned, 0, case.jobs.ps).astype(np.int32),
    )
    return dataclasses.replace(case, jobs=jobs, models=(*CATALOGUE, *models), origin=f"with plans: {case.origin}")


def with_domains(rng: np.random.Generator, case: Case) -> Case:
    """The same case where some racks are NVLink domains, whose servers keep their first group only."""
    cluster = case.cluster
    blocks = rng.integers(0, 4, cluster.rack_id.shape)
    inside = np.take_along_axis(blocks, np.asarray(cluster.server_rack), 1) > 0
    gone = inside[..., None] & (np.arange(cluster.shape[2]) > 0)
    changed = cluster.replace(
        domain_block=jnp.asarray(blocks, jnp.int32),
        group_gpus=jnp.where(gone, 0, cluster.group_gpus),
        group_gpu_type=jnp.where(gone, -1, cluster.group_gpu_type),
    )
    return dataclasses.replace(case, cluster=changed, origin=f"in domains: {case.origin}")


def _planned(rng: np.random.Generator, size: int) -> ModelProfile:
    model = CATALOGUE[rng.integers(len(CATALOGUE))]
    return dataclasses.replace(model, name=f"planned{size}", aliases=(), patterns=random_patterns(rng, size, 1e6, 1e9))
