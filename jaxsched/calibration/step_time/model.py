"""The step time of a placement: computation and ring all-reduce that partly overlap, fitted per model.

    step = (compute^gamma + comm^gamma)^(1/gamma),  gamma >= 1                        (Qiao et al., Pollux, 2021)
    compute = c(batch) (1 + straggle log2 n)
    comm = b (pcie [some node has several GPUs] + net [several nodes] / min(nodes - 1, 2)),  b = 2 (n-1)/n

for n GPUs. `b` is `dynamics.traffic`'s all-reduce per byte of gradients; `pcie` and `net` are the gradients' bytes over
an effective bandwidth. Two nodes have one pair of neighbours for the two opposite rings of NCCL, three and more have
two, so that each pair carries half: where the limit is per flow, as between cloud machines, that halves the time. That
factor is structure, chosen after seeing the data; everything else is fitted, and constant in the number of nodes.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Float32, Float64, Int, Int32, Shaped

from jaxsched.calibration.descent import minimize
from jaxsched.calibration.step_time.measurements import StepTimes
from jaxsched.dynamics.traffic import ring_bytes
from jaxsched.errors import UserError

STEPS, LEARNING_RATE, SOFTNESS = 1500, 0.05, 0.03  # softness: of the relative error, squares below, absolute above
PRIOR = 1e-5  # keeps what the rows do not determine where it starts
START = {"net": -2.0, "pcie": -4.0, "straggle": -4.0, "overlap": 0.0}  # log seconds; log; before softplus

Parameters = dict[str, Array]  # "compute" float32[batches], log seconds; the others float32[models]


@dataclasses.dataclass(frozen=True)
class StepTimeModel:
    """A fitted model: parameters by model, and computation by model and batch size."""

    models: tuple[str, ...]
    batches: tuple[tuple[str, int], ...]  # (model, batch size), sorted
    parameters: dict[str, np.ndarray]


def names_of(times: StepTimes) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Models, and (model, batch size) pairs, of the rows, sorted."""
    models = tuple(sorted({str(name) for name in times.model}))
    return models, tuple(sorted({(str(name), int(batch)) for name, batch in zip(times.model, times.batch)}))


def step_s(
    parameters: Parameters,
    model: Int[Array | np.ndarray, "D"],
    compute_s: Float32[Array, "D"],
    nodes: Int32[Array, "D"],
    gpus: Int32[Array, "D"],
    most: Int32[Array, "D"],
) -> Float32[Array, "D"]:
    """Seconds per step. `model` is a row of the parameters; the last three as in `StepTimes.spread`."""
    of = lambda name: jnp.exp(parameters[name])[model]
    compute = compute_s * (1.0 + of("straggle") * jnp.log2(gpus.astype(jnp.float32)))
    between = jnp.where(nodes > 1, of("net") / jnp.clip(nodes - 1, 1, 2), 0.0)
    comm = ring_bytes(jnp.float32(1.0), gpus) * (between + jnp.where(most > 1, of("pcie"), 0.0))
    gamma = 1.0 + jax.nn.softplus(parameters["overlap"])[model]
    alone = gpus == 1
    both = (compute**gamma + jnp.where(alone, 1.0, comm) ** gamma) ** (1.0 / gamma)
    return jnp.where(alone, compute, both)


def fit_subsets(times: StepTimes, weight: Shaped[np.ndarray, "B D"]) -> list[StepTimeModel]:
    """One model for each row of `weight` (numbers or booleans), all in one program."""
    models, batches = names_of(times)
    model, batch = _indices(times, models, batches)
    nodes, gpus, most = map(jnp.asarray, times.spread)
    target = jnp.log(jnp.asarray(times.step_s, jnp.float32))
    start = {name: jnp.full(len(models), value, jnp.float32) for name, value in START.items()}
    # Computation starts at the fastest row of that batch size; a batch size without rows keeps to that.
    fastest = np.full(len(batches), np.inf)
    np.minimum.at(fastest, batch, times.step_s)
    start["compute"] = jnp.log(jnp.asarray(fastest, jnp.float32))

    def loss(rows: Float32[Array, "D"], parameters: Parameters, _: Array) -> Float32[Array, ""]:
        compute = jnp.exp(parameters["compute"])[batch]
        off = jnp.log(step_s(parameters, model, compute, nodes, gpus, most)) - target
        robust = jnp.sqrt(off**2 + SOFTNESS**2) - SOFTNESS
        prior = sum(((parameters[name] - start[name]) ** 2).sum() for name in START)
        return (rows * robust).sum() / rows.sum() + PRIOR * prior

    descend = lambda rows: minimize(partial(loss, rows), start, steps=STEPS, learning_rate=LEARNING_RATE)
    found = jax.tree.map(np.asarray, jax.jit(jax.vmap(descend))(jnp.asarray(weight, jnp.float32)))
    return [StepTimeModel(models, batches, {name: leaf[i] for name, leaf in found.items()}) for i in range(len(weight))]


def fit_step_times(times: StepTimes) -> StepTimeModel:
    """The model that all rows give. The same on the same kind of machine, bit for bit."""
    return fit_subsets(times, np.ones((1, len(times.step_s))))[0]


def compute_s(fitted: StepTimeModel, times: StepTimes) -> Float64[np.ndarray, "D"]:
    """Seconds of computation alone; between measured batch sizes on the line, outside by the nearest two."""
    table = np.exp(fitted.parameters["compute"].astype(float))
    found = np.zeros(len(times.step_s))
    for name in np.unique(times.model):
        if name not in fitted.models:
            raise UserError(f"model {str(name)!r}: not measured, should be one of {', '.join(fitted.models)}")
        rows = [i for i, (model, _) in enumerate(fitted.batches) if model == name]
        known, seconds = np.array([fitted.batches[i][1] for i in rows], float), table[rows]
        mine = times.model == name
        found[mine] = _line(times.batch[mine].astype(float), known, seconds)
    return found


def predict_step_s(fitted: StepTimeModel, times: StepTimes) -> Float32[np.ndarray, "D"]:
    """Seconds per step of the rows' models, batch sizes and placements. UserError on an unknown model."""
    compute = compute_s(fitted, times)
    model = np.array([fitted.models.index(name) for name in times.model])
    parameters = jax.tree.map(jnp.asarray, fitted.parameters)
    return np.asarray(step_s(parameters, model, jnp.asarray(compute, jnp.float32), *map(jnp.asarray, times.spread)))


def _line(
    at: Float[np.ndarray, "D"], known: Float[np.ndarray, "n"], seconds: Float[np.ndarray, "n"]
) -> Float[np.ndarray, "D"]:
    """Values at `at` on the line through the nearest two of the points (`known`, `seconds`)."""
    if len(known) == 1:
        return seconds[0] * at / known[0]
    left = np.clip(np.searchsorted(known, at, side="right") - 1, 0, len(known) - 2)
    slope = (seconds[left + 1] - seconds[left]) / (known[left + 1] - known[left])
    return np.maximum(seconds[left] + slope * (at - known[left]), seconds.min() * 0.1)


def _indices(
    times: StepTimes, models: tuple[str, ...], batches: tuple[tuple[str, int], ...]
) -> tuple[Int[np.ndarray, "D"], Int[np.ndarray, "D"]]:
    """Of every row the places of its model and of its model and batch size."""
    pair = {key: i for i, key in enumerate(batches)}
    model = np.array([models.index(name) for name in times.model])
    return model, np.array([pair[str(name), int(batch)] for name, batch in zip(times.model, times.batch)])
