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
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from jaxsched.errors import UserError
from jaxsched.io import cards
from jaxsched.io.cards import CARD_FILE
from jaxsched.io.schema import Count, Size, Text, convert

WHAT = "step-time"  # on the cards of fitted ones
VOCABULARY = 51_200  # GPT-2's 50,257 tokens, padded as Megatron-LM does
SHARPNESS = 8.0  # of the larger of launch and work
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


def iteration_parts(constants: Constants, plans: Plans, server_gpus: int = 8, met: float = 12.0) -> dict[str, Seconds]:
    """Seconds of an iteration by `PARTS`, which add up to the whole: the formula of this module.

    met: parameters of a layer that a token meets, over hidden squared: 4 of attention, 8 of a dense part of width
    `4 hidden`.
    """
    c, tokens = constants, plans.micro_batch * plans.sequence
    t, d, p, hidden = plans.tensor, plans.data, plans.pipeline, plans.hidden
    micro_batches = plans.global_batch / (plans.micro_batch * d)
    matmul = 3 * (2 * met * tokens * hidden**2 + 4 * tokens * plans.sequence * hidden) / t / c["matmul_flop_s"]
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
    card: Card = convert(Card, cards.read_card(cards.locate(name, WHAT), WHAT), f"{WHAT} {name}: {CARD_FILE}")
    if card.constants.keys() != CONSTANTS.keys() or not all(0 < value < np.inf for value in card.constants.values()):
        raise UserError(f"{WHAT} {name}: {CARD_FILE}: constants should be positive numbers for {', '.join(CONSTANTS)}")
    if not 0 < card.mean_flop_s < np.inf:
        raise UserError(f"{WHAT} {name}: {CARD_FILE}: mean_flop_s is {card.mean_flop_s}, should be a positive number")
    return card
