"""A job's own model of its step times, fitted to what it has seen: the form is Pollux' (Qiao et al., OSDI 2021).

A pass without an update takes `P = ac + bc b` seconds at local batch `b`. The network takes `N = ar + br max(r - 2, 0)`
with `r` GPUs of one node, `an + bn max(r - 2, 0)` on several nodes, and nothing with one GPU. A step takes
`(P^g + N^g)^(1/g)`. A fit has the seven numbers `ac, bc, an, bn, ar, br, g`. See docs/semantics.md, section 13.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, Int
from scipy.optimize import minimize

NUMBERS = 7
LEAST, MOST_POWER = 1e-8, 10.0  # of a number that is fitted, and of g
OF_POWER, OF_GROWTH = 1e-3, 1e-2  # what the objective adds for g, and for how the network's time grows with GPUs
ACROSS = 1.1  # times the network of one node, for several nodes that were never seen


def predict(
    fit: Float64[Array, "... 7"], nodes: Int[Array, "..."], gpus: Int[Array, "..."], local: Int[Array, "..."]
) -> tuple[Float64[Array, "..."], Float64[Array, "..."]]:
    """Seconds of a pass and of a step."""
    passes, network, power = _parts(jnp, jnp.moveaxis(fit, -1, 0), nodes, gpus, local)
    return passes, jnp.where(network > 0, _together(jnp, passes, network, power), passes)


def fit_to(seen: Float64[np.ndarray, "S 4"], width: int) -> Float64[np.ndarray, "7"]:
    """The numbers that suit what was seen best, by SciPy's L-BFGS-B from a fixed start.

    Args:
        seen: GPUs (on the fewest nodes), local batch, seconds of a pass and of a step.
        width: GPUs of a node.
    """
    gpus, local, pass_s, step_s = seen.T
    nodes = np.ceil(gpus / width)
    network = [0.1 * step_s.mean(), 0.01 * step_s.mean()]
    start = np.array([pass_s.mean() / 2, (pass_s / local).mean() / 2, *network, *network, 1.1])
    low, high = np.array([LEAST] * 6 + [1.0]), np.array([np.inf] * 6 + [MOST_POWER])
    if len(np.unique(local)) == 1:
        low[0] = high[0] = start[0]
    within, across = (nodes == 1) & (gpus > 1), nodes > 1
    for at, there in ((2, across), (3, across & (gpus > 2)), (4, within), (5, within & (gpus > 2))):
        if not there.any():
            low[at] = high[at] = 0.0
    if not (within | across).any():
        high[6] = 1.0
    known = (nodes, gpus, local, pass_s, step_s)
    found = minimize(_objective, np.clip(start, low, high), known, "L-BFGS-B", True, bounds=[*zip(low, high)]).x
    if not across.any():
        found[2:4] = ACROSS * found[4:6]
    return found


def _parts(numpy: Any, fit: Any, nodes: Any, gpus: Any, local: Any) -> tuple[Any, Any, Any]:
    ac, bc, an, bn, ar, br, power = fit
    more = numpy.maximum(gpus - 2, 0)
    network = numpy.where(nodes > 1, an + bn * more, ar + br * more)
    return ac + bc * local, numpy.where(gpus > 1, network, 0.0), power


def _together(numpy: Any, passes: Any, network: Any, power: Any) -> Any:
    """`(P^g + N^g)^(1/g)`, N above 0, without powers of small numbers."""
    most, least = numpy.maximum(passes, network), numpy.minimum(passes, network)
    return most * (1.0 + (least / most) ** power) ** (1.0 / power)


def _objective(
    fit: np.ndarray, nodes: Any, gpus: Any, local: Any, pass_s: Any, step_s: Any
) -> tuple[float, np.ndarray]:
    """Roots of the mean squared errors of logarithms of both times, what is added to them, and the slope."""
    passes, network, power = _parts(np, fit, nodes, gpus, local)
    there = network > 0
    safe = np.where(there, network, 1.0)
    ratio = np.where(there, safe / passes, 0.0)
    share = 1.0 / (1.0 + ratio**power)  # of the step that grows with the pass
    step = np.where(there, _together(np, passes, safe, power), passes)
    more = np.maximum(gpus - 2, 0)
    zero, across, within = np.zeros_like(passes), there & (nodes > 1), there & (nodes == 1)
    of_pass = np.stack([np.ones_like(passes), local, *[zero] * 5]) / passes
    of_net = np.stack([zero, zero, across, across * more, within, within * more, zero]) / safe
    of_power = (share * np.log(passes) + (1 - share) * np.log(safe) - np.log(step)) / power
    of_step = share * of_pass + (1 - share) * of_net
    of_step[6] = np.where(there, of_power, 0.0)
    value, slope = 0.0, np.zeros(NUMBERS)
    for error, by in ((np.log(passes / pass_s), of_pass), (np.log(step / step_s), of_step)):
        root = max(float(np.sqrt(np.mean(error**2))), 1e-12)
        value, slope = value + root, slope + (by * error).mean(1) / root
    value, slope[6] = value + OF_POWER * (power - 1) ** 2, slope[6] + 2 * OF_POWER * (power - 1)
    for base, growth in ((2, 3), (4, 5)):
        if fit[base] > 0:
            rise = fit[growth] / fit[base]
            value += OF_GROWTH * rise**2
            slope[growth] += 2 * OF_GROWTH * rise / fit[base]
            slope[base] -= 2 * OF_GROWTH * rise**2 / fit[base]
    return value, slope
