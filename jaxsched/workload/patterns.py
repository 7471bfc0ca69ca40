"""Who of the ranks of a job sends what to whom in a step: the communication of a plan (docs/semantics.md, section 3).

The ranks of a job are its GPUs, `0 .. n-1`. A pattern divides them into communicators of `size` ranks that are `stride`
apart: rank `i` is the `(i // stride) % size`-th of its own.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int32

from jaxsched.pytree import Pytree, on_device

# Two rings of gradients: those of weights that all replicas have, and of experts. `exchange`: all to all of experts.
PATTERNS = ("tensor", "gradients", "expert gradients", "neighbours", "exchange")
TENSOR, GRADIENTS, EXPERT_GRADIENTS, NEIGHBOURS, EXCHANGE = range(len(PATTERNS))


class Patterns(NamedTuple):
    """The patterns of one model with a plan, one entry for each of `PATTERNS`."""

    gpus: int  # n
    stride: tuple[int, ...]
    size: tuple[int, ...]
    nbytes: tuple[float, ...]  # a step, from a rank to each of those that it sends to
    # Where domains sum up gradients first, which is no ring: what they sum up, of `GRADIENTS` and `EXPERT_GRADIENTS`.
    summed: tuple[float, float] = (0.0, 0.0)
    tree: bool = False  # domains then exchange by trees; False: as a ring


class PatternTable(Pytree):
    """Those of all models of a catalogue, `gpus` 0 for a model without a plan; of size 0 where none has one.

    `summed` has no columns where all gradients are rings.
    """

    gpus: Int32[Array, "Mp"]
    stride: Int32[Array, "Mp patterns"]
    size: Int32[Array, "Mp patterns"]
    nbytes: Float32[Array, "Mp patterns"]
    summed: Float32[Array, "Mp sums"]
    tree: Bool[Array, "Mp"]


def make_table(patterns: Sequence[Patterns | None] = ()) -> PatternTable:
    """Of each model."""
    alone = Patterns(0, (1,) * len(PATTERNS), (1,) * len(PATTERNS), (0.0,) * len(PATTERNS))
    rows = [one or alone for one in patterns] if any(patterns) else []
    wide = lambda column, kind: on_device(np.reshape(column, (len(rows), len(PATTERNS))), kind)
    summed = np.reshape([row.summed for row in rows], (len(rows), 2))
    return PatternTable(
        gpus=on_device([row.gpus for row in rows], np.int32),
        stride=wide([row.stride for row in rows], np.int32),
        size=wide([row.size for row in rows], np.int32),
        nbytes=wide([row.nbytes for row in rows], np.float32),
        summed=on_device(summed if summed.any() else summed[:, :0], np.float32),
        tree=on_device([row.tree for row in rows], np.bool_),
    )
