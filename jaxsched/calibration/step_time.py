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
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Float32, Float64, Int, Int32, Shaped

from jaxsched.calibration.data import Format, read_folder, read_table
from jaxsched.calibration.fitting import MODEL, Errors, figures_by_group, folds, minimize
from jaxsched.dynamics.traffic import ring_bytes
from jaxsched.errors import UserError
from jaxsched.io import cards
from jaxsched.io.cards import CARD_FILE, WEIGHTS_FILE
from jaxsched.io.schema import Count, Size, Text, convert
from jaxsched.workload.rows import Row

WHAT = "placement"  # on the cards of fitted ones
STEPS, LEARNING_RATE, SOFTNESS = 1500, 0.05, 0.03  # softness: of the relative error, squares below, absolute above
PRIOR = 1e-5  # keeps what the rows do not determine where it starts
START = {"net": -2.0, "pcie": -4.0, "straggle": -4.0, "overlap": 0.0}  # log seconds; log; before softplus
MOST_NODES, MOST_GPUS = 65536, 65536 * 1024  # far above any measurement: a typing error must not fill the memory
_TIMES = ("local_batch_size", "step_time_s", "sync_time_s")
PLACEMENT_COLUMNS = ("model", "placement", *_TIMES)
SCALABILITY_COLUMNS = ("model", "nodes", "gpus", *_TIMES)


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """Measured steps."""

    model: Shaped[np.ndarray, "D"]  # names
    batch: Int32[np.ndarray, "D"]  # samples per GPU
    placement: Shaped[np.ndarray, "D"]  # GPUs per node in ascending order, joined by '+'
    step_s: Float64[np.ndarray, "D"]

    @property
    def spread(self) -> tuple[Int32[np.ndarray, "D"], Int32[np.ndarray, "D"], Int32[np.ndarray, "D"]]:
        """Nodes, GPUs, most GPUs of a node."""
        counts = [list(map(int, text.split("+"))) for text in self.placement]
        shape = [(len(nodes), sum(nodes), max(nodes)) for nodes in counts]
        nodes, gpus, most = np.array(shape, np.int32).reshape(-1, 3).T
        return nodes, gpus, most

    def pick(self, kept: Bool[np.ndarray, "D"]) -> "StepTimes":
        """Those of `kept`."""
        return StepTimes(self.model[kept], self.batch[kept], self.placement[kept], self.step_s[kept])


def read_step_times(paths: Sequence[str | Path]) -> StepTimes:
    """The rows of all files: Pollux's `placements.csv` and `scalability.csv`, with a column `model`.

    A placement "1143" is four nodes with 1, 1, 4 and 3 GPUs; a row of `scalability.csv` says nodes and GPUs, which are
    spread evenly. UserError on any mistake.
    """
    rows = []
    for path in map(Path, paths):
        rows += read_table(path, FORMATS)[1]
    model, batch, placement, step = zip(*rows)
    return StepTimes(np.array(model), np.array(batch, np.int32), np.array(placement), np.array(step))


def _row(nodes_of: Callable[[Row], list[int]], row: Row) -> tuple[str, int, str, float]:
    nodes, name = nodes_of(row), row.name("model")
    if name == "all":
        raise row.fail("model", "another name, for figures of all models stand under this one")
    step = row.seconds("step_time_s")
    row.number("sync_time_s", minimum=0)
    placement = "+".join(map(str, sorted(nodes)))
    return name, row.whole("local_batch_size", minimum=1), placement, step


def _digits(row: Row) -> list[int]:
    text = row.text("placement")
    if not re.fullmatch("[1-9]{1,256}", text):
        raise row.fail("placement", "one digit from 1 to 9 per node, its GPUs")
    return [int(digit) for digit in text]


def _even(row: Row) -> list[int]:
    nodes, gpus = row.whole("nodes", minimum=1, maximum=MOST_NODES), row.whole("gpus", minimum=1, maximum=MOST_GPUS)
    if gpus < nodes:
        raise row.fail("gpus", f"at least the number of nodes, {nodes}")
    return [gpus // nodes + (i < gpus % nodes) for i in range(nodes)]


FORMATS = (Format(PLACEMENT_COLUMNS, partial(_row, _digits)), Format(SCALABILITY_COLUMNS, partial(_row, _even)))


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


COMPUTE, MEAN = "compute only", "mean"  # the references
FEW_NODES = 2


def errors(times: StepTimes, predicted: Float[np.ndarray, "D"]) -> Errors:
    """{"median": {model or "all": x}, "mape": {...}, "mae": {...}}: relative errors, as fractions, and seconds."""
    off = np.abs(predicted - times.step_s)
    relative = off / times.step_s
    return {
        "median": figures_by_group(times.model, relative, np.median),
        "mape": figures_by_group(times.model, relative),
        "mae": figures_by_group(times.model, off),
    }


def mean_step_s(times: StepTimes) -> dict[str, float]:
    """{"MODEL BATCH": mean seconds per step}: the reference that ignores the placement."""
    keys = _keys(times)
    return {str(key): float(times.step_s[keys == key].mean()) for key in np.unique(keys)}


def compare(fitted: StepTimeModel, means: dict[str, float], times: StepTimes) -> dict[str, Errors]:
    """Errors of the model, of its computation alone, and of the mean (where there is none: the computation)."""
    compute = compute_s(fitted, times)
    mean = np.array([means.get(str(key), alone) for key, alone in zip(_keys(times), compute)])
    predicted = {MODEL: predict_step_s(fitted, times), COMPUTE: compute, MEAN: mean}
    return {name: errors(times, values) for name, values in predicted.items()}


def cross_validate(times: StepTimes, count: int = 5, seed: int = 0) -> dict[str, Errors]:
    """Every row predicted by a fit without the rows of its placement, and of others of its fold."""
    fold = folds(np.unique(times.placement, return_inverse=True)[1], count, seed)
    weight = np.array([fold != number for number in range(count)])
    predicted = {name: np.zeros(len(fold)) for name in (MODEL, COMPUTE, MEAN)}
    for number, fitted in enumerate(fit_subsets(times, weight)):
        out = ~weight[number]
        rows, means = times.pick(out), mean_step_s(times.pick(weight[number]))
        compute = compute_s(fitted, rows)
        predicted[MODEL][out] = predict_step_s(fitted, rows)
        predicted[COMPUTE][out] = compute
        predicted[MEAN][out] = [means.get(str(key), alone) for key, alone in zip(_keys(rows), compute)]
    return {name: errors(times, values) for name, values in predicted.items()}


def extrapolate(times: StepTimes, nodes: int = FEW_NODES) -> dict[str, Errors]:
    """Fit on placements of at most `nodes` nodes, errors on all others."""
    near = times.spread[0] <= nodes
    fitted = fit_subsets(times, near[None].astype(float))[0]
    return compare(fitted, mean_step_s(times.pick(near)), times.pick(~near))


def _keys(times: StepTimes) -> Shaped[np.ndarray, "D"]:
    return np.char.add(np.char.add(times.model, " "), times.batch.astype(str))


def save_model(folder: Path, fitted: StepTimeModel, means: dict[str, float], card: dict[str, Any]) -> None:
    """Writes the model and the reference `means` of the same rows."""
    named = {"models": fitted.models, "batches": fitted.batches, "means": means}
    cards.write(folder, WHAT, fitted.parameters, named | card)


def load_model(name: str | Path) -> tuple[StepTimeModel, dict[str, float], dict[str, Any]]:
    """Model, reference means and card of a folder, or of the shipped one (`fitted`). UserError if there is none."""
    parameters, card = read_folder(name, WHAT)
    read: Card = convert(Card, card, f"{WHAT} {name}: {CARD_FILE}")
    rows = {parameter: len(read.models) for parameter in START} | {"compute": len(read.batches)}
    found = {name: np.shape(leaf) for name, leaf in parameters.items()} if isinstance(parameters, dict) else {}
    if found != {parameter: (count,) for parameter, count in rows.items()}:
        raise UserError(f"{WHAT} {name}: {WEIGHTS_FILE} has shapes {found}, should have lengths {rows}")
    if any(model not in read.models for model, _ in read.batches):
        raise UserError(f"{WHAT} {name}: {CARD_FILE}: batches names a model that is not among models")
    return StepTimeModel(tuple(read.models), tuple(read.batches), parameters), read.means, card


class Card(msgspec.Struct):
    """What the card of a fitted model holds."""

    models: list[Text]
    batches: list[tuple[Text, Size]]
    means: dict[str, float]
    data: list[dict[str, Text]] = []
    rows: Count = 0
    command: Text = ""
