"""Constants of the step time of transformers by their plans (`workload.transformer`), fitted to measured iterations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Float32, Float64

from jaxsched.calibration.data import Format, read_table
from jaxsched.calibration.fitting import minimize
from jaxsched.errors import UserError
from jaxsched.io import cards
from jaxsched.workload.rows import Row
from jaxsched.workload.transformer import CONSTANTS, MOST, VOCABULARY, WHAT, Card, Plans, predict_iteration_s

WORST = 10.0  # relative error of a row; beyond, some rows are not what the formula is for
STEPS, LEARNING_RATE, SOFTNESS = 3000, 0.03, 0.03  # softness: of the relative error, squares below, absolute above
PRIOR = 1e-5  # keeps what the rows do not determine near where it starts

COLUMNS = {
    "hidden size": "hidden",
    "# layers": "layers",
    "attention heads": "heads",
    "sequence length": "sequence",
    "global batch": "global_batch",
    "micro batch": "micro_batch",
    "tensor parallelism": "tensor",
    "data parallelism": "data",
    "pipeline parallelism": "pipeline",
}
_GPUS, _TIME, _BILLIONS = "# GPUs", "iteration time (ms)", "Parameters (billion)"


def _row(row: Row) -> tuple[dict[str, int], float]:
    plan = {name: row.whole(column, minimum=1, maximum=MOST) for column, name in COLUMNS.items()}
    gpus = plan["tensor"] * plan["data"] * plan["pipeline"]
    if row.whole(_GPUS, minimum=1, maximum=MOST) != gpus:
        raise row.fail(_GPUS, f"the product of the degrees of parallelism, {gpus}")
    return plan, row.number(_TIME, minimum=0, exclusive=True) / 1000


_NAMES = (*COLUMNS, _GPUS, _TIME)
FORMATS = (Format(_NAMES, _row, "measured iterations"), Format((*_NAMES, _BILLIONS), _row))


def read_iterations(paths: Sequence[str | Path]) -> tuple[Plans, Float64[np.ndarray, "D"]]:
    """The rows of all files: plans, and measured seconds per iteration. UserError on any mistake.

    The columns are those of vTrain's measurements (VIA-Research/vTrain): `COLUMNS`, "# GPUs" and "iteration time (ms)".
    "Parameters (billion)" may be there; it follows from the others and is not read.
    """
    rows = [row for path in map(Path, paths) for row in read_table(path, FORMATS)[1]]
    plans = [plan for plan, _ in rows]
    columns = {name: np.array([plan[name] for plan in plans], float) for name in COLUMNS.values()}
    return Plans(**columns), np.array([seconds for _, seconds in rows])


def fit_constants(plans: Plans, seconds: Float[np.ndarray, "D"], server_gpus: int = 8) -> dict[str, float]:
    """The constants that all rows give: least relative errors, rows on one server weighing as much as those on several.

    The same on the same kind of machine, bit for bit.

    Raises:
        UserError: nothing like these times comes out of the formula.
    """
    many = plans.gpus > server_gpus
    weight = np.where(many, 1 / max(many.sum(), 1), 1 / max((~many).sum(), 1))
    start = {name: jnp.log(jnp.float32(value)) for name, (value, _) in CONSTANTS.items()}
    target, weight = np.log(seconds).astype(np.float32), (weight / weight.sum()).astype(np.float32)

    def loss(logs: dict[str, Array], _: Array) -> Float32[Array, ""]:
        off = jnp.log(predict_iteration_s(jax.tree.map(jnp.exp, logs), plans, server_gpus)) - target
        robust = jnp.sqrt(off**2 + SOFTNESS**2) - SOFTNESS
        prior = sum((logs[name] - start[name]) ** 2 for name in start)
        return (weight * robust).sum() + PRIOR * prior

    found = jax.jit(lambda: minimize(loss, start, steps=STEPS, learning_rate=LEARNING_RATE))()
    constants = {name: float(np.exp(value)) for name, value in jax.tree.map(float, found).items()}
    worst = errors(predict_iteration_s(constants, plans, server_gpus), seconds)["worst"]
    if not worst <= WORST or not all(0 < value < np.inf for value in constants.values()):
        text = f"no constants suit all rows, one time is off by {worst:.3g} times itself"
        raise UserError(f"{text}; they should be in milliseconds, of one kind of hardware")
    return constants


def _flop(plans: Plans) -> Float[np.ndarray, "D"]:
    """FLOP of an iteration: matrix products and the output layer, of all GPUs."""
    tokens = plans.global_batch * plans.sequence
    layer = 24 * plans.hidden**2 + 4 * plans.sequence * plans.hidden
    return 3 * tokens * (plans.layers * layer + 2 * plans.hidden * VOCABULARY)


def mean_flop_s(plans: Plans, seconds: Float[np.ndarray, "D"]) -> float:
    """FLOP/s of a GPU, the median over rows: the reference that ignores how a model is cut up."""
    return float(np.median(_flop(plans) / plans.gpus / seconds))


def compare(card: Card, plans: Plans, seconds: Float[np.ndarray, "D"]) -> dict[str, dict[str, float]]:
    """Errors of all rows (`all`), of those on one server and on several, and of the reference `mean_flop_s`."""
    predicted = np.asarray(predict_iteration_s(card.constants, plans, card.server_gpus))
    many = plans.gpus > card.server_gpus
    groups = {"all": np.ones_like(many), "one server": ~many, "several servers": many}
    table = {name: errors(predicted[rows], seconds[rows]) for name, rows in groups.items() if rows.any()}
    return table | {"FLOP alone": errors(_flop(plans) / plans.gpus / card.mean_flop_s, seconds)}


def errors(predicted: Float[Array | np.ndarray, "D"], seconds: Float[np.ndarray, "D"]) -> dict[str, float]:
    """{"rows", and as fractions "mape", "median", "worst" of the relative error's size, "bias" of the error}."""
    off = np.asarray(predicted) / seconds - 1
    size = np.abs(off)
    kinds = {"mape": size.mean(), "median": np.median(size), "worst": size.max(), "bias": off.mean()}
    return {"rows": len(off)} | {name: float(value) for name, value in kinds.items()}


def save_constants(folder: Path, constants: dict[str, float], card: dict[str, Any]) -> None:
    """Writes a folder whose card holds the constants, with their meaning, and what is known of them."""
    meanings = {name: meaning for name, (_, meaning) in CONSTANTS.items()}
    cards.write_card(folder, WHAT, {"constants": constants, "meanings": meanings} | card)
