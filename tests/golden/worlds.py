"""Clusters, jobs and rules of golden runs, made from numbers alone: the same under any tree."""

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import adapter

MODELS = 8  # the first ones of the catalogue

CLUSTERS = {
    "leaf-spine": """
servers: [{count: 8, groups: [4, 4], cores: 48, nic_gbits_s: 25}]
topology: {kind: leaf-spine, servers_per_rack: 2, oversubscription: 4.0}
schedulers: 2
""",
    "one-scheduler": """
servers: [{count: 4, groups: [4, 4]}, {count: 4, groups: [2], cores: 10}, {count: 2, groups: [8], nic_gbits_s: 100}]
topology: {kind: leaf-spine, servers_per_rack: 4, spines: 2}
schedulers: 1
""",
    "gpu-types": """
servers:
  - {count: 2, groups: [4, 4]}
  - {count: 2, groups: [4, 4], gpu_type: A100}
  - {count: 2, groups: [4], gpu_type: T4, cores: 24, nic_gbits_s: 10}
  - {count: 2, groups: [4, 2], gpu_type: P100}
topology: {kind: fat-tree, servers_per_rack: 2, racks_per_pod: 2, rack_oversubscription: 2.0, pod_oversubscription: 2.0}
schedulers: 2
""",
    "sockets": """
servers: [{count: 5, groups: [2, 3, 1], pcie_gbytes_s: 6}, {count: 4, groups: [4, 4, 4], qpi_gbytes_s: 8}]
topology: {kind: leaf-spine, servers_per_rack: 3}
schedulers: 3
""",
    "torus2d": """
servers: [{count: 12, groups: [4], nic_gbits_s: 10}]
topology: {kind: torus2d}
schedulers: 2
""",
    "torus3d": """
servers: [{count: 12, groups: [4], nic_gbits_s: 10}]
topology: {kind: torus3d}
schedulers: 2
""",
    "dragonfly": """
servers: [{count: 12, groups: [4], nic_gbits_s: 10}]
topology: {kind: dragonfly}
schedulers: 2
""",
    "bcube": """
servers: [{count: 9, groups: [2, 2]}]
topology: {kind: bcube}
schedulers: 2
""",
    "vl2": """
servers: [{count: 8, groups: [4, 4]}]
topology: {kind: vl2, servers_per_rack: 2, oversubscription: 2.0}
schedulers: 2
""",
    "rail": """
servers: [{count: 8, groups: [4, 4], nic_gbits_s: 40}]
topology: {kind: rail, servers_per_unit: 4, rails: 4}
schedulers: 2
""",
}


@dataclasses.dataclass(frozen=True)
class World:
    """A cluster, what its jobs are like, and the rules."""

    cluster: str
    seed: int
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    error: float = 0.0  # of estimates
    fractions: float = 0.0  # share of the jobs that want a part of one GPU
    pace_s: float = 60.0  # mean time between submissions
    home: int = 3  # jobs go to homes below it
    out: bool = False  # servers are out as a list of outages says

    @property
    def stops(self) -> bool:
        """Whether schedulers may stop jobs."""
        return bool(self.settings.get("preemption"))

    @property
    def knows(self) -> str:
        """What policies know of run times."""
        return self.settings.get("knows", "runtimes")

    def all_settings(self, **changes: Any) -> Any:
        """As the package takes them."""
        out = {"outages": outages(self.seed)} if self.out else {}
        return adapter.Settings(record_placements=True, threads=1, **{**self.settings, **out, **changes})


_STOPS = {"preemption": True, "restart_s": 60.0, "checkpoint_s": 600.0, "min_run_s": 120.0}
WORLDS = {
    "plain": World("leaf-spine", 1),
    "estimates": World("one-scheduler", 2, {"knows": "estimates", "interval_s": 7.3}, error=0.8),
    "wrong-estimates": World("gpu-types", 3, {"knows": "estimates", "interference": "fitted"}, error=1.5),
    "nothing": World("torus3d", 4, {"knows": "nothing", **_STOPS}),
    "history": World("leaf-spine", 5, {"knows": "history", **_STOPS}, error=0.5),
    "history-types": World("gpu-types", 6, {"knows": "history", "preemption": True, "restart_s": 13.7}),
    "stops": World("leaf-spine", 7, _STOPS),
    "stops-estimates": World("one-scheduler", 8, {**_STOPS, "knows": "estimates", "interval_s": 211.7}, error=0.8),
    "free-stops": World("sockets", 9, {"preemption": True, "restart_s": 0.0, "interval_s": 7.3}),
    "types": World("gpu-types", 10, {"preemption": True, "restart_s": 30.0, "interval_s": 20.0}),
    "forwards": World("sockets", 11, {"max_forwards": 5, "interval_s": 211.7}, home=1),
    "no-forwards": World("sockets", 12, {"max_forwards": 0, "rounds": 2}),
    "failures": World("dragonfly", 13, {"failures": "4,0.5", "restart_s": 120.0, "checkpoint_s": 300.0}),
    "failures-stops": World("vl2", 14, {**_STOPS, "failures": "3,0.3", "failure_seed": 5}),
    "outages": World("rail", 15, {"restart_s": 60.0}, out=True),
    "history-failures": World("torus2d", 16, {"knows": "history", **_STOPS, "failures": "4,0.5"}),
    "torus2d": World("torus2d", 17, {"interference": "analytic:high"}, home=1),
    "torus3d": World("torus3d", 18, {"interference": "analytic:low"}),
    "dragonfly": World("dragonfly", 19, {"max_forwards": 20}, home=1),
    "bcube": World("bcube", 20, {"interference": "none"}),
    "vl2": World("vl2", 21, {"interference": "fitted"}),
    "rail": World("rail", 22, {"rounds": 3}),
    "horizon": World("leaf-spine", 23, {"horizon_s": 3000.0}),
    "crowded": World("leaf-spine", 24, pace_s=5.0),
}
# Jobs share GPUs, for the engine that has this.
SHARED = {
    "shared": World("leaf-spine", 31, fractions=0.6, pace_s=10.0),
    "pairs": World("gpu-types", 32, {"pair_factors": 1.0}, fractions=0.8, pace_s=10.0),
    "known-pairs": World("gpu-types", 33, {"pair_factors": 1.0, "pairs_known": True}, fractions=0.8, pace_s=10.0),
    "shared-stops": World("leaf-spine", 34, {**_STOPS, "pair_factors": 0.7}, fractions=0.8, pace_s=10.0),
    "shared-failures": World("leaf-spine", 35, {"failures": "3,0.3", "restart_s": 60.0}, fractions=0.6, pace_s=10.0),
}
JOBS = 40


def cluster_of(name: str) -> Any:
    """One of `CLUSTERS`, read as a user's file is."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.yaml"
        path.write_text(CLUSTERS[name], encoding="utf-8")
        return adapter.get_cluster(str(path))


def jobs_of(world: World, number: int = 0) -> Any:
    """A job list: gangs of 1 to 16 workers, with parameter servers and without, of several models and tenants."""
    rng = np.random.default_rng((world.seed, number))
    workers = rng.choice([1, 2, 3, 4, 8, 16], JOBS, p=[0.3, 0.2, 0.1, 0.2, 0.15, 0.05])
    per_worker = rng.choice([1, 2, 4], JOBS, p=[0.75, 0.2, 0.05])
    ps = np.where(rng.random(JOBS) < 0.5, 0, np.maximum(1, workers // 2))
    shared = rng.random(JOBS) < world.fractions
    milli = np.where(shared, rng.choice([125, 250, 333, 500, 810], JOBS), 1000)
    jobs = adapter.make_job_list(
        submit_s=np.cumsum(np.round(rng.exponential(world.pace_s, JOBS) * (rng.random(JOBS) < 0.85), 3)),
        duration_s=np.round(np.exp(rng.normal(6.5, 1.3, JOBS)), 3) + 1.0,
        workers=np.where(shared, 1, workers),
        gpus_per_worker=np.where(shared, 1, per_worker),
        ps=np.where(shared, 0, ps),
        model=rng.integers(0, MODELS, JOBS),
        tenant=rng.integers(0, 4, JOBS),
        home=rng.integers(0, world.home, JOBS),
        milli=milli,
    )
    return adapter.with_estimates(jobs, world.error, world.seed)


def outages(seed: int) -> Any:
    """Half of eight servers are out now and then in the first hours."""
    rng = np.random.default_rng((99, seed))
    servers = np.repeat(np.arange(4), 2)
    begin = np.round(rng.uniform(0, 4000, 8) + np.tile([0, 6000], 4), 1)
    return adapter.Outages(servers, begin, begin + np.round(rng.uniform(100, 2000, 8), 1))
