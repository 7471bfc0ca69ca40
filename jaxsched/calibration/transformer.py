"""The time of a training iteration of a transformer by its plan: how it is cut up by tensor, data and pipeline.

A replica (`tensor * pipeline` GPUs) takes `m = global_batch / (micro_batch * data)` micro-batches of `n = micro_batch *
sequence` tokens through its stages, one forward and one backward at a time (1F1B; Narayanan et al., Megatron-LM, 2021):

    iteration = m (stage + head) + (pipeline - 1) stage + 2 (m + pipeline - 1) hop + gradients + fixed
    stage     = layers / pipeline * layer
    layer     = (launch^8 + (matmul + softmax + tensor_groups + gap)^8)^(1/8)          about the larger of the two
    matmul    = 3 (24 n hidden^2 + 4 n sequence hidden) / tensor / matmul_flop_s       forward once, backward twice
    softmax   = softmax_s n sequence heads / tensor
    launch    = launch_s (1 + launch_growth log2(tensor))
    tensor_groups = 4 all-reduces of 2 n hidden bytes over `tensor` GPUs; each of their 2 (tensor - 1) steps costs
                    `step_s` inside a server, and nothing but its bytes across servers
    head      = 6 n hidden VOCABULARY / tensor / head_flop_s
    hop       = hop_s + 2 n hidden / `hop_bytes_s` (inside a server: `nvlink_bytes_s`)
    gradients = all-reduce of 4 bytes per parameter of the GPU over `data` GPUs

An all-reduce of x bytes over k GPUs sends 2 (k - 1) / k x bytes at `nvlink_bytes_s` inside a server. Across servers
`nic_bytes_s` of a server bounds it, and the groups of its GPUs share that: a tensor group across servers has it alone,
`tensor` groups (at most the GPUs of a server) share it for the gradients. Ranks lie as in Megatron-LM: those of a
tensor group side by side, then data, then pipeline. Activations are not computed a second time. Names that are neither
a plan's nor a term's are the fitted `CONSTANTS`.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Float32, Float64

from jaxsched.calibration.data import Format, read_folder_card, read_table
from jaxsched.calibration.fitting import minimize
from jaxsched.errors import UserError
from jaxsched.io import cards
from jaxsched.io.cards import CARD_FILE
from jaxsched.io.schema import Count, Size, Text, convert
from jaxsched.workload.rows import Row

WHAT = "step-time"  # on the cards of fitted ones
VOCABULARY = 51_200  # GPT-2's 50,257 tokens, padded as Megatron-LM does
SHARPNESS = 8.0  # of the larger of launch and work
STEPS, LEARNING_RATE, SOFTNESS = 3000, 0.03, 0.03  # softness: of the relative error, squares below, absolute above
PRIOR = 1e-5  # keeps what the rows do not determine near where it starts
MOST = 1 << 20  # of any count of a plan: a typing error must not overflow

# The constants, where the fit starts, and what they mean. All are positive, and fitted as logarithms.
CONSTANTS = {
    "matmul_flop_s": (200e12, "FLOP/s of matrix products, a GPU"),
    "head_flop_s": (100e12, "FLOP/s of the output layer, a GPU"),
    "softmax_s": (3e-11, "seconds per attention score, a layer"),
    "launch_s": (3e-3, "least seconds of a layer and micro-batch: the host launches its kernels"),
    "launch_growth": (0.05, "how much longer that takes per doubling of the tensor group"),
    "gap_s": (1e-3, "idle seconds of a GPU per layer and micro-batch"),
    "step_s": (4e-5, "seconds that a step of a ring inside a server costs beside its bytes"),
    "nvlink_bytes_s": (150e9, "bytes/s between the GPUs of a server, a GPU"),
    "nic_bytes_s": (50e9, "bytes/s between servers, a server"),
    "hop_s": (5e-4, "seconds from one stage to the next beside their bytes"),
    "hop_bytes_s": (20e9, "bytes/s from one stage to the next across servers"),
    "fixed_s": (1e-3, "seconds of an iteration"),
}
PARTS = ("compute", "tensor", "bubble", "head", "hops", "gradients", "fixed")

Constants = dict[str, Any]  # name -> positive number, or array of one
Seconds = Float[Array | np.ndarray, "D"]


@dataclasses.dataclass(frozen=True)
class Plans:
    """Models and how they are cut up; each an array float64[D] of whole numbers."""

    hidden: Float[np.ndarray, "D"]
    layers: Float[np.ndarray, "D"]
    heads: Float[np.ndarray, "D"]
    sequence: Float[np.ndarray, "D"]  # tokens
    global_batch: Float[np.ndarray, "D"]  # sequences per iteration
    micro_batch: Float[np.ndarray, "D"]
    tensor: Float[np.ndarray, "D"]  # GPUs
    data: Float[np.ndarray, "D"]
    pipeline: Float[np.ndarray, "D"]

    @property
    def gpus(self) -> Float[np.ndarray, "D"]:
        """GPUs of a job."""
        return self.tensor * self.data * self.pipeline

    def pick(self, kept: Bool[np.ndarray, "D"]) -> "Plans":
        """Those of `kept`."""
        return Plans(*(getattr(self, field.name)[kept] for field in dataclasses.fields(self)))


def make_plans(**plan: int) -> Plans:
    """One plan, by the names of `Plans`. UserError unless all are whole and positive, and the parts go in."""
    for name, value in plan.items():
        if not 1 <= value <= MOST:
            raise UserError(f"{name} {value}: should be 1 to {MOST}")
    divisors = (("pipeline", "layers"), ("tensor", "heads"))
    for part, whole in divisors:
        if plan[whole] % plan[part]:
            raise UserError(f"{part} {plan[part]}: should divide {whole}, {plan[whole]}")
    if plan["global_batch"] % (plan["micro_batch"] * plan["data"]):
        raise UserError(f"global_batch {plan['global_batch']}: should be a multiple of micro_batch times data")
    return Plans(**{name: np.array([value], float) for name, value in plan.items()})


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


def iteration_parts(constants: Constants, plans: Plans, server_gpus: int = 8) -> dict[str, Seconds]:
    """Seconds of an iteration by `PARTS`, which add up to the whole: the formula of this module."""
    c, tokens = constants, plans.micro_batch * plans.sequence
    t, d, p, hidden = plans.tensor, plans.data, plans.pipeline, plans.hidden
    micro_batches = plans.global_batch / (plans.micro_batch * d)
    matmul = 3 * (24 * tokens * hidden**2 + 4 * tokens * plans.sequence * hidden) / t / c["matmul_flop_s"]
    work = matmul + c["softmax_s"] * tokens * plans.sequence * plans.heads / t + c["gap_s"]
    launch = c["launch_s"] * (1 + c["launch_growth"] * np.log2(t))
    ring = lambda gpus: 2 * (gpus - 1) / gpus
    inside = ring(t) * 2 * tokens * hidden / c["nvlink_bytes_s"] + 2 * (t - 1) * c["step_s"]
    across = ring(t) * 2 * tokens * hidden / c["nic_bytes_s"]
    groups = 4 * jnp.where(t > server_gpus, across, inside)
    larger = lambda gpu: (launch**SHARPNESS + gpu**SHARPNESS) ** (1 / SHARPNESS)
    stage, alone = (plans.layers / p * larger(gpu) for gpu in (work + groups, work))
    hop = c["hop_s"] + 2 * tokens * hidden / jnp.where(plans.gpus > server_gpus, c["hop_bytes_s"], c["nvlink_bytes_s"])
    parameters = (12 * plans.layers / p * hidden**2 + VOCABULARY * hidden) / t
    shared = c["nic_bytes_s"] / np.minimum(t, server_gpus)
    gradients = ring(d) * 4 * parameters / jnp.where(t * d > server_gpus, shared, c["nvlink_bytes_s"])
    return {
        "compute": micro_batches * alone,
        "tensor": micro_batches * (stage - alone),
        "bubble": (p - 1) * stage,
        "head": micro_batches * 6 * tokens * hidden * VOCABULARY / t / c["head_flop_s"],
        "hops": jnp.where(p > 1, 2 * (micro_batches + p - 1) * hop, 0.0),
        "gradients": gradients,
        "fixed": c["fixed_s"] * jnp.ones_like(gradients),
    }


def predict_iteration_s(constants: Constants, plans: Plans, server_gpus: int = 8) -> Float[Array, "D"]:
    """Seconds per iteration."""
    return jnp.asarray(sum(iteration_parts(constants, plans, server_gpus).values()))


def fit_constants(plans: Plans, seconds: Float[np.ndarray, "D"], server_gpus: int = 8) -> dict[str, float]:
    """The constants that all rows give: least relative errors, rows on one server weighing as much as those on several.

    The same on the same kind of machine, bit for bit.
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
    return {name: float(np.exp(value)) for name, value in jax.tree.map(float, found).items()}


def _flop(plans: Plans) -> Float[np.ndarray, "D"]:
    """FLOP of an iteration: matrix products and the output layer, of all GPUs."""
    tokens = plans.global_batch * plans.sequence
    layer = 24 * plans.hidden**2 + 4 * plans.sequence * plans.hidden
    return 3 * tokens * (plans.layers * layer + 2 * plans.hidden * VOCABULARY)


def mean_flop_s(plans: Plans, seconds: Float[np.ndarray, "D"]) -> float:
    """FLOP/s of a GPU, the median over rows: the reference that ignores how a model is cut up."""
    return float(np.median(_flop(plans) / plans.gpus / seconds))


def compare(card: "Card", plans: Plans, seconds: Float[np.ndarray, "D"]) -> dict[str, dict[str, float]]:
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


class Card(msgspec.Struct):
    """What the card of fitted constants holds."""

    constants: dict[str, float]
    server_gpus: Size
    mean_flop_s: float
    hardware: Text = ""
    data: list[dict[str, Text]] = []
    rows: Count = 0
    command: Text = ""


def load_constants(name: str | Path) -> Card:
    """The card of a folder, or of the shipped one (`fitted`). UserError if it does not hold positive constants."""
    card: Card = convert(Card, read_folder_card(name, WHAT), f"{WHAT} {name}: {CARD_FILE}")
    if card.constants.keys() != CONSTANTS.keys() or not all(0 < value < np.inf for value in card.constants.values()):
        raise UserError(f"{WHAT} {name}: {CARD_FILE}: constants should be positive numbers for {', '.join(CONSTANTS)}")
    return card
