"""How strong contention is, in the simulator's terms: on the network by DeepShare's cells, on one GPU by Gavel's pairs.

The simulator's step is `1 - c + c stretch`, with `c` the share of the step that communicates alone, and the stretch
under one co-runner that communicates for a share `c'` of its time is `1 + kappa c'^power`. So a cell's ratio is
`1 / (1 + kappa c c'^power)`. The shares `c` in (0, 1) are not measured and are fitted with the strength, one per job.
As no share is above 1, the cells bound `kappa` from below: with too small a strength no shares explain them.

On one GPU a co-runner is always met, so a pair's ratio is `1 / (1 + kappa)` and the strength is the one of least error.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32

from jaxsched.calibration.fitting import minimize
from jaxsched.calibration.interference.measurements import Measurements

GRID = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
ENOUGH = 1.01  # a strength explains the cells if its error is within 1% of the best one's
GPU_GRID = np.round(np.arange(0.0, 5.005, 0.01), 2)
ALL_GPUS = "all"
STEPS, LEARNING_RATE, SOFTNESS, PRIOR = 1500, 0.05, 0.02, 0.02


@dataclasses.dataclass(frozen=True)
class Curve:
    """A fitted strength: the stretch is `1 + kappa others^power`."""

    kappa: float
    power: float
    mae: float  # of the ratio, on the rows of the fit
    shares: Float32[np.ndarray, "E"]  # c of each job


def fit_curves(measured: Measurements, kappas: tuple[float, ...], free: bool) -> list[Curve]:
    """One curve for each of `kappas`: it and power 1 or, if `free`, both fitted from there (power >= 1)."""
    victim, aggressor = jnp.asarray(measured.victim), jnp.asarray(measured.aggressor)
    ratio = jnp.asarray(measured.ratio, jnp.float32)

    def numbers(values: dict[str, Array]) -> tuple[Array, Array, Array]:
        power = 1.0 + jax.nn.softplus(values["power"]) if free else jnp.float32(1.0)
        return jnp.exp(values["kappa"]), power, jax.nn.sigmoid(values["share"])

    def predicted(values: dict[str, Array]) -> Array:
        kappa, power, share = numbers(values)
        return 1.0 / (1.0 + kappa * share[victim] * share[aggressor] ** power)

    def loss(values: dict[str, Array], _: Array) -> Array:
        robust = jnp.sqrt((predicted(values) - ratio) ** 2 + SOFTNESS**2) - SOFTNESS
        return robust.sum() + PRIOR * (values["share"] ** 2).sum()

    def descend(kappa: Array):
        start = {"kappa": jnp.log(kappa), "power": jnp.float32(-1.0), "share": jnp.zeros(len(measured.items))}
        trained = {"kappa": float(free), "power": float(free), "share": 1.0}
        values = minimize(loss, start, steps=STEPS, learning_rate=LEARNING_RATE, trained=trained)
        return *numbers(values), jnp.abs(predicted(values) - ratio).mean()

    kappa, power, share, mae = map(np.asarray, jax.jit(jax.vmap(descend))(jnp.asarray(kappas, jnp.float32)))
    power = np.broadcast_to(power, kappa.shape)
    return [Curve(float(k), float(p), float(e), s) for k, p, e, s in zip(kappa, power, mae, share)]


def best_curve(measured: Measurements) -> Curve:
    """Strength and power that explain the cells best."""
    return fit_curves(measured, (1.0,), free=True)[0]


def least_strength(curves: list[Curve]) -> float:
    """The smallest strength that explains the cells about as well as any."""
    best = min(curve.mae for curve in curves)
    return min(curve.kappa for curve in curves if curve.mae <= ENOUGH * best)


def gpu_strengths(measured: Measurements) -> dict[str, tuple[float, float]]:
    """Strength of least mean absolute error, to a hundredth, and that error, for each GPU type and for all pairs."""
    hardware, found = measured.hardware, {}
    for name in (*sorted(set(hardware.tolist())), ALL_GPUS):
        ratio = measured.ratio[(hardware == name) | (name == ALL_GPUS)]
        errors = np.abs(1.0 / (1.0 + GPU_GRID[:, None]) - ratio).mean(1)
        found[name] = float(GPU_GRID[errors.argmin()]), float(errors.min())
    return found
