"""Levels out of a table, by GPUs and run time so far (docs/semantics.md, section 8, "Orders")."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, Int32

from jaxsched.errors import UserError
from jaxsched.semantics import FIRST_RUN_S, HIGHEST_LEVEL, RUN_BINS, WIDTH_CLASSES


@dataclasses.dataclass(frozen=True)
class LevelTable:
    """An order that is data: levels by the GPUs that jobs hold and their run time so far. UserError if misshapen."""

    levels: tuple[tuple[int, ...], ...]  # WIDTH_CLASSES rows of RUN_BINS
    margin: int = 0  # by how many levels more a running job may exceed a queued one before it is displaced

    def __post_init__(self) -> None:
        """Check shape and range."""
        if len(self.levels) != WIDTH_CLASSES or any(len(row) != RUN_BINS for row in self.levels):
            raise UserError(f"levels: should be {WIDTH_CLASSES} rows of {RUN_BINS} whole numbers")
        if any(abs(level) > HIGHEST_LEVEL for row in self.levels for level in row):
            raise UserError(f"levels: should be from -{HIGHEST_LEVEL} to {HIGHEST_LEVEL}")
        if not 0 <= self.margin <= HIGHEST_LEVEL:
            raise UserError(f"margin: {self.margin} should be from 0 to {HIGHEST_LEVEL}")


def levels_of(table: LevelTable, gpus: Int32[Array, "*jobs"], run_s: Float32[Array, "*jobs"]) -> Int32[Array, "*jobs"]:
    """Levels of jobs that hold so many GPUs when they run, a shared one counted whole, and have run for so long."""
    wide = jnp.asarray([2**i for i in range(1, WIDTH_CLASSES)], jnp.int32)
    width = (gpus[..., None] >= wide).sum(-1)
    return jnp.asarray(table.levels, jnp.int32)[width, run_bin(run_s)]


def run_bin(run_s: Float32[Array, "*jobs"]) -> Int32[Array, "*jobs"]:
    """How many of `run_limits_s` a run time has reached."""
    return (run_s[..., None] >= jnp.asarray(run_limits_s(), jnp.float32)).sum(-1, dtype=jnp.int32)


def run_limits_s() -> list[float]:
    """Run times at which a job may come to another level."""
    return [FIRST_RUN_S * 2.0**i for i in range(RUN_BINS - 1)]
