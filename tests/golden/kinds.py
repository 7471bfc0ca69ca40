"""The kinds of golden runs, each with its own file of digests."""

import dataclasses
from collections.abc import Callable
from typing import Any

from . import commands, in_jax, loop, trained

ON_HOST = ("python", "numpy", "jax", "numba", "cpu")
IN_JAX = (*ON_HOST, "jaxlib")


@dataclasses.dataclass(frozen=True)
class Kind:
    """Runs in parts, each of which is played by itself."""

    parts: Callable[[], list[str]]
    play: Callable[..., dict[str, str]]  # of a part, and of what keeps arrays
    depends_on: tuple[str, ...]  # of `versions`
    packed: Callable[[dict[str, str]], Any] = dict
    unpacked: Callable[[str, Any], dict[str, str]] = lambda part, packed: packed


KINDS = {
    "loop": Kind(
        parts=lambda: list(loop.plan()),
        play=lambda part, keep=None: loop.play(part, loop.plan()[part], keep),
        depends_on=ON_HOST,
        packed=loop.by_rule,
        unpacked=lambda part, packed: loop.unpacked(loop.plan()[part], packed),
    ),
    "evaluate": Kind(lambda: list(commands.EVALUATE), commands.evaluated, ON_HOST),
    "simulate": Kind(lambda: list(commands.SIMULATE), commands.simulated, ON_HOST),
    "workloads": Kind(commands.workloads, commands.listed, ON_HOST),
    "replay": Kind(lambda: ["example", *map(str, range(commands.REPLAYS))], commands.replayed, ON_HOST),
    "plan": Kind(lambda: list(commands.PLANNERS), commands.planned, ON_HOST),
    "training": Kind(trained.parts, trained.play, (*IN_JAX, "flax")),
    "jax": Kind(in_jax.parts, in_jax.play, IN_JAX),
    "steps": Kind(lambda: ["rounds", "turns"], commands.stepped, IN_JAX),
}
