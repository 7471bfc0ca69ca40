"""Profiles as dense arrays, made once on the host: what the program of the world looks up.

A *plan* is an application with one batch size, or with a choice of its own (docs/semantics.md, section 13). A *shape*
is what a step time depends on: GPUs per node, from most to least, up to four nodes; nodes and GPUs beyond.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float64, Int

from jaxsched.adaptive.profiles import Application, Placement, Values
from jaxsched.errors import UserError
from jaxsched.pytree import Pytree, on_device

CANDIDATES = 50  # batch sizes that a job with a choice looks at, as in Pollux' code
EVERY_NODES = 16  # up to here a job may have any number of whole nodes
LISTED_NODES = 4  # placements on more nodes count by nodes and GPUs only
MOST_LISTED = 9  # GPUs of a node: a digit of `placements.csv`
_ROUND = 1e-9  # below this a ratio is taken to be whole


class Plan(NamedTuple):
    """An application, and its batch size (None: chosen by the job)."""

    application: str
    batch: int | None


class Tables(Pytree):
    """What the world looks up. M plans, T GPU types, S shapes, E epochs, R1 one more than the most GPUs of a job."""

    epochs: Int[Array, "M"]
    ends: Float64[Array, "M E"]  # progress at which an epoch ends
    speed: Float64[Array, "M T S E"]  # goodput at the best batch of the plan; 0 where no profile covers the shape
    sync: Float64[Array, "M T S E"]  # share of an update that is synchronisation, at that batch
    goodput: Float64[Array, "M E T R1"]  # the same on the fewest nodes, by GPUs
    update_s: Float64[Array, "M T R1"]  # of an update at the first candidate, on the fewest nodes; inf: not covered
    iterations: Float64[Array, "M E"]  # from the end of an epoch to that of the last one, at least 1
    shape_of_code: Int[Array, "C"]  # of placements on up to `LISTED_NODES`, by `code_weights`
    shape_of_size: Int[Array, "N1 R1"]  # of others, by nodes and GPUs


class Shapes(NamedTuple):
    """Placements that jobs may have, and where they stand."""

    placements: tuple[Placement, ...]
    of_code: np.ndarray  # int32[C]
    of_size: np.ndarray  # int32[N1, R1]


def code_weights(most: int) -> np.ndarray:
    """What a node with so many GPUs of a job adds to the code of its placement. int64[most + 1]."""
    return np.array([0, *((LISTED_NODES + 1) ** np.arange(most))], np.int64)


def shapes_of(node_gpus: Sequence[int], nodes: int, most_gpus: int, *, whole: bool) -> Shapes:
    """The shapes of placements on `nodes` nodes, of at most `most_gpus` GPUs.

    Args:
        node_gpus: GPUs of a node, by GPU type.
        nodes: the most nodes of a job.
        most_gpus: the most GPUs of a job.
        whole: jobs have `widths` only, and share no node where they have several.

    Raises:
        UserError: nodes have more GPUs than a digit of a placement says.
    """
    per_node = max(node_gpus)
    found: dict[Placement, int] = {}
    of_size = np.zeros((nodes + 1, most_gpus + 1), np.int32)
    if whole:
        for size in node_gpus:
            for gpus in widths(size, most_gpus):
                placement = fewest_nodes(gpus, size)
                if len(placement) <= nodes:
                    of_size[len(placement), gpus] = found.setdefault(placement, len(found))
        return Shapes(tuple(found), np.zeros(0, np.int32), of_size)
    if per_node > MOST_LISTED:
        text = f"nodes of {per_node} GPUs: should have at most {MOST_LISTED} where a policy may place a job on any GPUs"
        raise UserError(f"{text}, for profiles list no others; pollux and sia can play this")
    of_code = np.zeros((LISTED_NODES + 1) ** per_node, np.int32)
    for count in range(1, min(nodes, LISTED_NODES) + 1):
        for placement in itertools.combinations_with_replacement(range(per_node, 0, -1), count):
            if sum(placement) <= most_gpus:
                of_code[code_weights(per_node)[list(placement)].sum()] = found.setdefault(placement, len(found))
    for count in range(LISTED_NODES + 1, nodes + 1):
        for gpus in range(count, min(count * per_node, most_gpus) + 1):
            even, more = divmod(gpus, count)
            placement = (even + 1,) * more + (even,) * (count - more)
            of_size[count, gpus] = found.setdefault(placement, len(found))
    return Shapes(tuple(found), of_code, of_size)


def widths(node_gpus: int, most: int) -> list[int]:
    """GPUs that a job may have where no two jobs share a node that one has in part: powers of two, or whole nodes.

    Beyond `EVERY_NODES` nodes only powers of two of them: each choice costs time, and one node more does little there.
    """
    within = [2**i for i in range(node_gpus.bit_length()) if 2**i < node_gpus]
    nodes = [*range(1, EVERY_NODES + 1), *(EVERY_NODES << i for i in range(1, most.bit_length()))]
    return [gpus for gpus in (*within, *(count * node_gpus for count in nodes)) if gpus <= most]


def fewest_nodes(gpus: int, node_gpus: int) -> Placement:
    """So many GPUs on whole nodes, and the rest on one more."""
    whole, rest = divmod(gpus, node_gpus)
    return (node_gpus,) * whole + ((rest,) if rest else ())


def split(app: Application, kind: str, batch: Values, gpus: int) -> tuple[np.ndarray, np.ndarray]:
    """A batch over GPUs: local batches, and passes without an update before each update. Both int64[B].

    Args:
        app: the application.
        kind: the GPU type.
        batch: batch sizes that are wanted. [B].
        gpus: how many there are.
    """
    most_local, largest = app.local_batches(kind)[1], int(app.batches[-1])
    local = np.ceil(batch / gpus - _ROUND)
    passes = np.ceil(local / most_local - _ROUND) - 1
    if gpus == 1:
        passes = np.where(batch > app.batches[0], np.maximum(passes, 1), passes)
    local = np.minimum(np.ceil(local / (passes + 1) - _ROUND), largest // (gpus * (passes + 1)))
    return local.astype(np.int64), passes.astype(np.int64)


def candidates(app: Application, kind: str, batch: int | None, gpus: int) -> tuple[np.ndarray, np.ndarray]:
    """What a plan may do on so many GPUs: local batches and passes. Both int64[K]."""
    if batch is not None:
        return split(app, kind, np.array([batch], float), gpus)
    least = max(int(app.batches[0]), app.local_batches(kind)[0] * gpus)
    return split(app, kind, np.geomspace(least, int(app.batches[-1]), CANDIDATES), gpus)


def gains(app: Application, batch: Values) -> Values:
    """How much more an update does than one at the smallest batch: [K, E] at batch sizes [K]."""
    square, variance = (
        np.stack([np.interp(batch, app.batches, of_epoch) for of_epoch in table.T], axis=-1)
        for table in (app.grad_sqr, app.grad_var)
    )
    scale = batch[:, None] / app.batches[0]
    return (variance + square) / (variance / scale + square)


def make_tables(
    apps: Mapping[str, Application],
    plans: Sequence[Plan],
    types: Sequence[str],
    node_gpus: Sequence[int],
    shapes: Shapes,
) -> Tables:
    """The arrays of a world.

    Args:
        apps: what was measured.
        plans: what jobs are like.
        types: names of the GPU types, as profiles have them.
        node_gpus: GPUs of a node, by type.
        shapes: of placements.

    Raises:
        UserError: a profile has a hole between numbers of GPUs, or between placements, that it covers.
    """
    most = shapes.of_size.shape[1] - 1
    longest = max(apps[plan.application].epochs for plan in plans)
    size = len(plans), len(types)
    speed, sync = (np.zeros((*size, len(shapes.placements), longest)) for _ in range(2))
    goodput, update_s = np.zeros((*size, most + 1, longest)), np.full((*size, most + 1), np.inf)
    for m, plan in enumerate(plans):
        app = apps[plan.application]
        for t, (kind, width) in enumerate(zip(types, node_gpus, strict=True)):
            if kind not in app.step_times:
                continue
            fits = range(1, min(most, app.most_gpus(plan.batch)) + 1)
            tried = {gpus: _tried(app, kind, plan.batch, gpus) for gpus in fits}
            found = {
                placement: _speed(app, kind, placement, tried[sum(placement)])
                for placement in {*shapes.placements, *(fewest_nodes(gpus, width) for gpus in tried)}
                if sum(placement) in tried and max(placement) <= width
            }
            for s, placement in enumerate(shapes.placements):
                if placement in found:
                    speed[m, t, s, : app.epochs], sync[m, t, s, : app.epochs], _ = found[placement]
            for gpus in tried:
                goodput[m, t, gpus, : app.epochs], _, update_s[m, t, gpus] = found[fewest_nodes(gpus, width)]
    _check_holes(plans, apps, goodput)
    if len(shapes.of_code):
        _check_spread(plans, apps, shapes, types, node_gpus, goodput, speed)
    of_plans = [apps[plan.application] for plan in plans]
    return Tables(
        epochs=on_device([app.epochs for app in of_plans], np.int32),
        ends=on_device(np.stack([_padded(app.progress, longest) for app in of_plans]), np.float64),
        speed=on_device(speed, np.float64),
        sync=on_device(sync, np.float64),
        goodput=on_device(np.moveaxis(goodput, 3, 1), np.float64),
        update_s=on_device(update_s, np.float64),
        iterations=on_device(
            np.stack([_padded(_iterations_left(apps[p.application], p.batch), longest) for p in plans]), np.float64
        ),
        shape_of_code=on_device(shapes.of_code, np.int32),
        shape_of_size=on_device(shapes.of_size, np.int32),
    )


def _tried(app: Application, kind: str, batch: int | None, gpus: int) -> tuple[np.ndarray, np.ndarray, Values]:
    local, passes = candidates(app, kind, batch, gpus)
    return local, passes, gains(app, (gpus * local * (passes + 1)).astype(float))


def _speed(app: Application, kind: str, placement: Placement, tried: tuple) -> tuple[Values, Values, float]:
    """Goodput, and share of synchronisation, by epoch; seconds of an update at the first candidate."""
    local, passes, gain = tried
    step, sync = app.step_times[kind].at(placement, local)
    seconds = (step + passes * (step - sync)) * app.limits.slower
    first, goodput = float(seconds[0]), np.nan_to_num(gain / seconds[:, None])
    share = np.nan_to_num(sync * app.limits.slower / seconds)[goodput.argmax(axis=0)]
    return goodput.max(axis=0), share, first if np.isfinite(first) else np.inf


def _iterations_left(app: Application, batch: int | None) -> Values:
    size = int(app.batches[0]) if batch is None else batch
    at = np.array([np.interp(size, app.batches, of_epoch) for of_epoch in app.iterations[:, : app.epochs].T])
    return np.maximum(at[-1] - at, 1.0)


def _padded(values: Values, size: int) -> Values:
    return np.pad(values, (0, size - len(values)), mode="edge")


def _check_holes(plans: Sequence[Plan], apps: Mapping[str, Application], goodput: Values) -> None:
    for plan, table in zip(plans, goodput[..., 0].max(axis=1), strict=True):
        covered = np.flatnonzero(table)
        app = apps[plan.application]
        where = next(iter(app.step_times.values())).where
        if not len(covered):
            batch = "" if plan.batch is None else f" at batch size {plan.batch}"
            raise UserError(f"{where}: covers no number of GPUs{batch} that the cluster has, should cover one at least")
        missing = sorted(set(range(covered[0], covered[-1])) - set(covered))
        if missing:
            raise UserError(
                f"{where}: has a hole, no step time for {missing[0]} GPUs; should cover all from {covered[0]} to "
                f"{covered[-1]}"
            )


def _check_spread(
    plans: Sequence[Plan],
    apps: Mapping[str, Application],
    shapes: Shapes,
    types: Sequence[str],
    node_gpus: Sequence[int],
    goodput: Values,
    speed: Values,
) -> None:
    """Where jobs may be put on any nodes, a job that no step time is known for would hold its GPUs and stand still."""
    gpus = np.array([sum(placement) for placement in shapes.placements])
    for plan, reached, known in zip(plans, goodput[..., 0], speed[..., 0], strict=True):
        for t, (kind, width) in enumerate(zip(types, node_gpus, strict=True)):
            fits = np.array([max(placement) <= width for placement in shapes.placements])
            missing = np.flatnonzero(fits & (reached[t][gpus] > 0) & (known[t] == 0))
            if len(missing):
                where = apps[plan.application].step_times[kind].where
                raise UserError(
                    f"{where}: has a hole, no step time for {gpus[missing[0]]} GPUs as "
                    f"{'+'.join(map(str, shapes.placements[missing[0]]))} on nodes, as a policy may place them"
                )
