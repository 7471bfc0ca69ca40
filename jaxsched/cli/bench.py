"""`jaxsched bench`: how fast this machine simulates and trains."""

import dataclasses
import math
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jaxsched.cli.options import Output, optional

if TYPE_CHECKING:
    from jaxsched.bench.simulator import Timing

TRAINING_SCHEDULERS = 4
HELP = """Measure decisions/s of the environment, jobs/s of simulations, and decisions/s of training.

Wall and CPU seconds are of the run alone, compilation stands apart. Takes a few minutes.

Examples:
  jaxsched bench --json bench.json
  jaxsched bench --clusters leaf-spine-8 --num-envs 1 64 --no-training
  jaxsched bench --clusters leaf-spine-1024 --schedulers 16 --num-envs 1 --policies pack --no-training --roofline
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure decisions/s of the environment, jobs/s of simulations, and decisions/s of training."""

    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("leaf-spine-8", "leaf-spine-64")
    """Clusters of the environment and of the simulations."""
    schedulers: Annotated[int | None, optional("P")] = None
    """Schedulers of every cluster (default: the cluster's)."""
    num_envs: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = (1, 64, 1024)
    """Environments at once."""
    policies: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("random", "pack")
    """Policies that drive the environment."""
    simulate: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("pack", "greedy-wait:p1")
    """Policies of the simulations."""
    training: bool = True
    """Measure training, too, with the configuration of the quickstart on another cluster."""
    training_cluster: str = "leaf-spine-32"
    """That cluster; it has 4 schedulers, or --schedulers."""
    path: Literal["auto", "cpu", "accelerator"] = "auto"
    """What environments and training are made for: see `train --path`. Simulations play rounds."""
    roofline: bool = False
    """Also show what share of a copy's bytes a second decisions read and write, as compiled (over 100%: a cache)."""
    json: Output = None
    """Also write the rows as JSON."""

    def run(self) -> None:
        """Measure, print, write. UserError on any mistake."""
        import json

        from jaxsched.bench.simulator import (
            bench_compiled,
            bench_environment,
            bench_simulation,
            compiled_plays,
            copied_bytes_s,
            jax_plays,
        )
        from jaxsched.cli.output import results, text
        from jaxsched.cluster.presets import get_cluster
        from jaxsched.dynamics.batching import traced_for
        from jaxsched.errors import UserError
        from jaxsched.io.files import check_outputs
        from jaxsched.learning.config import AUTO
        from jaxsched.machine import compute_on_one_thread
        from jaxsched.policies.registry import parse

        compute_on_one_thread()
        if not self.clusters or not self.num_envs:
            raise UserError("--clusters, --num-envs: should name at least one each")
        check_outputs({"--json": self.json}, [*self.clusters, *self.policies, *self.simulate])
        if any(count < 1 for count in self.num_envs):
            raise UserError(f"--num-envs {' '.join(map(str, self.num_envs))}: should all be at least 1")
        for cluster in self.clusters:
            get_cluster(cluster, self.schedulers)
        training_schedulers = self.schedulers or TRAINING_SCHEDULERS
        if self.training:
            get_cluster(self.training_cluster, training_schedulers)
        if searches := [name for name in (*self.policies, *self.simulate) if parse(name).searches]:
            raise UserError(f"{searches[0]!r}: searches; what they cost is in the tables of `jaxsched evaluate`")
        if beyond := [policy for policy in self.simulate if not jax_plays(policy)]:
            raise UserError(f"--simulate: {beyond[0]!r} is for the event loop only; name it in --policies")
        copied = copied_bytes_s() if self.roofline else math.nan
        print(f"a copy: {copied / 1e9:.1f} GB/s\n" * self.roofline + _line(HEADER), flush=True)
        shown = lambda row, cluster="": _shown(copied, dataclasses.replace(row, cluster=cluster))
        rows = []
        for cluster in self.clusters:
            for policy in self.policies:
                with traced_for(None if self.path == AUTO else self.path):
                    if jax_plays(policy):
                        made = (bench_environment(cluster, policy, n, self.schedulers) for n in self.num_envs)
                        rows += [shown(row, cluster) for row in made]
                if compiled_plays(cluster, policy, self.schedulers):
                    made = (bench_compiled(cluster, policy, n, self.schedulers) for n in self.num_envs)
                    rows += [shown(row, cluster) for row in made]
            made = (bench_simulation(cluster, policy, schedulers=self.schedulers) for policy in self.simulate)
            rows += [shown(row, cluster) for row in made]
        if self.training:
            rows.append(shown(_in_process(_training, self.training_cluster, training_schedulers, self.path)))
        with results() as write:
            write(self.json, text(json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n"))


HEADER = ("name", "cluster", "envs", "servers", "decisions/s", "jobs/CPU s", "wall s", "CPU s", "compile s",
          "memory MB", "kB/decision", "of copy", "device")  # fmt: skip
_WIDTHS = (26, 16, 5, 7, 11, 10, 7, 7, 9, 9, 11, 7)


def _line(cells: tuple[str, ...]) -> str:
    rest = (cell.rjust(width) for cell, width in zip(cells[1:-1], _WIDTHS[1:]))
    return "  ".join([cells[0].ljust(_WIDTHS[0]), *rest, cells[-1]])


def _shown(copied: float, row: "Timing") -> "Timing":
    """Prints the row as soon as it is known, and returns it."""

    def number(value: float | None, digits: int = 0) -> str:
        return "–" if value is None else f"{value:,.{digits}f}"

    memory = None if row.peak_memory_bytes is None else row.peak_memory_bytes / 1e6
    cells = (
        row.name,
        row.cluster,
        str(row.num_envs),
        str(row.servers),
        number(row.decisions_per_s),
        number(row.jobs_per_cpu_s),
    )
    times = tuple(number(value, 2) for value in (row.wall_s, row.cpu_s, row.compile_s))
    read = math.nan if row.decision_bytes is None else row.decision_bytes
    share = read * (row.decisions_per_s or math.nan) / copied
    limits = number(row.decision_bytes and read / 1e3), "–" if math.isnan(share) else f"{share:.1%}"
    print(_line((*cells, *times, number(memory, 1), *limits, row.device)), flush=True)
    return row


def _in_process(function: Callable[..., "Timing"], *args: Any) -> "Timing":
    """`function(*args)`, on a CPU in a new process: the backend of this one has one thread there."""
    import jax

    if jax.default_backend() != "cpu":
        return function(*args)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def _training(cluster: str, schedulers: int, path: str) -> "Timing":
    """Training's decisions/s on the quickstart's configuration, on another cluster and with a shard per core."""
    import jax

    from jaxsched.bench.simulator import Timing, device_name
    from jaxsched.cluster.presets import get_inventory
    from jaxsched.learning.config import MachineConfig, quickstart_config, validate
    from jaxsched.learning.devices import provide_devices
    from jaxsched.learning.loop import bench_chunk
    from jaxsched.machine import enable_cache

    enable_cache()
    provide_devices()
    config = quickstart_config()
    shards = math.gcd(len(jax.local_devices()), math.gcd(config.ppo.num_envs, config.validation.seeds))
    config = dataclasses.replace(
        config,
        env=dataclasses.replace(config.env, cluster=cluster, schedulers=schedulers),
        ppo=dataclasses.replace(config.ppo, shards=shards),
        machine=MachineConfig(path=path),
    )
    figures = bench_chunk(validate(config))
    return Timing(
        name="training",
        num_envs=int(figures["num_envs"]),
        servers=len(get_inventory(config.env.cluster).servers),
        decisions_per_s=figures["decisions_per_s"],
        jobs_per_cpu_s=None,
        wall_s=figures["wall_s"],
        cpu_s=figures["cpu_s"],
        compile_s=figures["compile_s"],
        peak_memory_bytes=None,
        device=device_name(),
    )
