"""What training is measured against: the same network with its first weights, and whether anything was learned.

A run's folder has that policy beside the trained one. Curves start with it, at chunk 0.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxsched import shipped
from jaxsched.errors import UserError
from jaxsched.io.cards import CARD_FILE
from jaxsched.networks.hierarchy import SchedulerNetwork
from jaxsched.policies.checkpoint import NETWORK_FIELDS, check_card, load_policy, read_card

UNTRAINED_FOLDER = "untrained"
FEW_DECISIONS = 20_000  # a fifth of the shortest training that docs/results tells of
ALIKE = 1e-6  # relative; figures that differ by less are of the same decisions

Curve = list[tuple[int, float | None]]  # chunks done, and mean JCT in validation; None where a run did not end


def first_weights(checkpoint: str, freeze: Sequence[str], network: SchedulerNetwork, drawn: PyTree) -> PyTree:
    """The weights that a run begins with: those `drawn`, or those of the checkpoint if there is one.

    UserError if there is none, it is of another network, or a part that is to be frozen is none of it.
    """
    parts = list(drawn["params"])
    if wrong := [name for name in freeze if name not in parts]:
        raise UserError(f"start: freeze: {wrong[0]!r} should be one of {', '.join(parts)}")
    if not checkpoint:
        return drawn
    folder, other = shipped.resolve(shipped.CHECKPOINTS, checkpoint), network_of(checkpoint)
    if wrong := [name for name, value in other.items() if getattr(network, name) != value]:
        found = ", ".join(f"{name} {other[name]}" for name in wrong)
        wanted = ", ".join(f"{name} {getattr(network, name)}" for name in wrong)
        raise UserError(f"start: checkpoint {folder}: its network has {found}, should have {wanted}")
    with jax.ensure_compile_time_eval():  # a run reads them while its first program is traced
        weights = load_policy(folder).weights
    if jax.tree.map(jnp.shape, weights) != jax.tree.map(jnp.shape, drawn):
        raise UserError(f"start: checkpoint {folder}: its flat network is for clusters of other sizes")
    return jax.tree.map(jnp.asarray, weights)


def network_of(checkpoint: str) -> dict[str, Any]:
    """What a checkpoint's network is like, by field. UserError if it is none."""
    folder = shipped.resolve(shipped.CHECKPOINTS, checkpoint)
    network = check_card(str(folder), read_card(folder))[0]
    return {name: getattr(network, name) for name in NETWORK_FIELDS}


def has_untrained(run_dir: Path) -> bool:
    """Whether the folder has the policy of the first weights; runs from before do not."""
    return (run_dir / UNTRAINED_FOLDER / CARD_FILE).is_file()


def curve_of(run_dir: Path, rows: Sequence[Mapping[str, Any]]) -> Curve:
    """Validation over chunks, from the untrained policy on. `rows` are those of the run's metrics."""
    known = lambda jct_s: jct_s if math.isfinite(jct_s) else None
    trained = [(row["chunk"], known(row["validation_jct_s"])) for row in rows if "validation_jct_s" in row]
    if not has_untrained(run_dir):
        return trained
    return [(0, read_card(run_dir / UNTRAINED_FOLDER)["validation_jct_s"]), *trained]


def doubts(curve: Curve, decisions: float) -> Iterator[str]:
    """Why it may be that a training shows nothing, a line each."""
    if decisions < FEW_DECISIONS:
        yield f"{decisions:,.0f} decisions are few to learn from: no training in docs/results has under 100,000"
    before = dict(curve).get(0)
    best = min((jct_s for chunk, jct_s in curve if chunk > 0 and jct_s is not None), default=None)
    if before is None or best is None:
        return
    if are_alike([before], [best]):
        yield f"on the validation worlds it decides as untrained ({before:,.0f} s): nothing that was learned shows"
    elif best > before:
        yield f"untrained it was better in validation ({before:,.0f} s, best since then {best:,.0f} s)"


def are_alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether figures of two policies on the same jobs are those of the same decisions."""
    return len(one) == len(other) and all(math.isclose(a, b, rel_tol=ALIKE) for a, b in zip(one, other))
