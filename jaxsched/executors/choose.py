"""Which executor a command line names."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxsched.errors import UserError
from jaxsched.executors.executor import Executor, LocalExecutor

LOCAL, RAY, SLURM = KINDS = ("local", "ray", "slurm")


@contextmanager
def choose_executor(on: str, asks: Sequence[str], folder: Path) -> Iterator[Executor]:
    """The executor of `--on` for the time of the block: local, ray[:ADDRESS] or slurm[:local].

    Args:
        on: as on the command line.
        asks: KEY=VALUE, what each task asks for: num_cpus, num_gpus and memory_gib of Ray, submitit's parameters of
            Slurm.
        folder: where Slurm's jobs keep their files; all machines must see it.

    UserError if it cannot be used, before anything is run.
    """
    kind, colon, place = on.partition(":")
    empty = " nothing follows the colon;" if colon and not place else ""
    if kind not in KINDS or empty or (kind == LOCAL and place):
        raise UserError(f"--on {on.removesuffix(':')}:{empty} should be local, ray, ray:ADDRESS, slurm or slurm:local")
    wanted = _read(asks)
    if kind == LOCAL:
        if wanted:
            raise UserError("--ask: is for --on ray and --on slurm; in this process there is nothing to ask for")
        yield LocalExecutor()
    elif kind == RAY:
        from jaxsched.executors.ray_cluster import ASKS, connect_ray

        for name, value in wanted.items():
            if name not in ASKS or not isinstance(value, int | float) or value < 0:
                raise UserError(f"--ask {name}={value}: should be a number of {', '.join(ASKS)}")
        with connect_ray(place, wanted) as executor:
            yield executor
    else:
        from jaxsched.executors.slurm_jobs import open_slurm

        with open_slurm(place or SLURM, wanted, folder) as executor:
            yield executor


def _read(asks: Sequence[str]) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    for ask in asks:
        name, is_one, value = ask.partition("=")
        if not (name and is_one and value):
            raise UserError(f"--ask {ask}: should be KEY=VALUE, for instance num_cpus=4 or timeout_min=600")
        if name in wanted:
            raise UserError(f"--ask {ask}: {name} stands twice")
        wanted[name] = _number(value)
    return wanted


def _number(value: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
