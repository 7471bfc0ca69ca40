"""The options of a training's parts: each once, with what it means and its limits.

A part takes its own of these and no other: worlds, experience and its reward, the estimator, validation.
`learning.config` reads them. Nothing heavy is imported here: files are checked, and sweeps planned, without networks.
"""

import dataclasses
from typing import Annotated

from msgspec import Meta

from jaxsched.cluster.outages import parse_rates
from jaxsched.env.state import RewardWeights, reward_weights
from jaxsched.io.files import shorten
from jaxsched.io.schema import Count, NotNegative, Positive, Share
from jaxsched.options import World
from jaxsched.semantics import KNOWLEDGE, NOTHING
from jaxsched.workload.catalogue import get_mix

Many = Annotated[int, Meta(ge=1, le=1 << 16)]  # environments, steps, slots: far above any run, far below any memory
Jobs = Annotated[int, Meta(ge=1, le=10**7)]
Limits = tuple[float, float]  # least and most of what is drawn
GpuCounts = Annotated[tuple[tuple[int, float], ...], Meta(max_length=1024)]
PositiveLimits = tuple[Positive, Positive]
Rules = list[tuple[bool, str]]  # what must hold of several options, and what to say where it does not

Chunks = Annotated[int, Meta(ge=1, le=2**31 - 1)]
PositiveShare = Annotated[float, Meta(gt=0, le=1)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]


def rule_of_rising(name: str, limits: Limits) -> tuple[bool, str]:
    """The rule of a range."""
    return limits[0] <= limits[1], f"{name}: {list(limits)} should be two rising numbers"


@dataclasses.dataclass(frozen=True)
class WorkloadConfig:
    """The jobs to train on; ranges (low, high) are drawn anew for every environment."""

    load: PositiveLimits = (0.6, 1.0)
    mean_duration_s: float = 3600.0
    duration_cap_s: float = 28800.0
    gpu_counts: GpuCounts = ((1, 0.6), (2, 0.08), (4, 0.14), (8, 0.12), (16, 0.04), (32, 0.02))  # GPUs and weight
    ps_fraction: float = 0.5
    mix: str = "default"  # of models: a name of `workload.catalogue`, or models with commas between
    burstiness: float = 1.5
    home_skew: tuple[NotNegative, NotNegative] = (0.3, 0.3)  # home h has weight (h + 1)^-skew
    gang_tilt: Limits = (0.0, 0.0)  # gangs are drawn with weights times size^tilt
    pace: PositiveLimits = (1.0, 1.0)  # factor of all times, the interval included; log-uniform
    jobs: Jobs = 512  # per environment
    trace_gpu: str = ""  # GPU type that run times are on; "": the reference type of each cluster
    trace: str = ""  # a trace whose jobs these are, in stretches; then only load, pace, jobs and trace_gpu count
    until: PositiveShare = 1.0  # of the trace only the jobs before this share, in order of submission
    own: bool = False  # jobs and models of the training worlds that the clusters are of; `load` is a factor of theirs

    def rules(self) -> Rules:
        """What must hold of several of these together. UserError on an unknown mix."""
        get_mix(self.mix)
        alone = not (self.own and (self.trace or self.trace_gpu))
        rising = [rule_of_rising(name, getattr(self, name)) for name in ("load", "home_skew", "gang_tilt", "pace")]
        return [(alone, "own: the jobs are those of worlds; leave out trace and trace_gpu"), *rising]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentConfig(World):
    """The cluster to train on, and the rules of its world: those of an evaluation, with these defaults, and more."""

    cluster: str = "leaf-spine-8"  # or that of a training world, wide-training-3
    more_clusters: tuple[str, ...] = ()  # every environment draws one of all
    schedulers: Many = 2
    interval_s: float = 300.0
    interval_factor: PositiveLimits = (1.0, 1.0)  # of the interval alone, drawn per environment; log-uniform
    running_slots: Many = 32
    queue_slots: Many = 64
    rounds: int = 16
    interference: str = "analytic"
    contention: tuple[NotNegative, NotNegative] = (0.5, 1.5)  # its strength, drawn per environment, 1 = as it is
    failures: str | None = ""  # drawn anew for every environment; "": none does

    def rules(self) -> Rules:
        """What else must hold. UserError on failures out of range."""
        if self.failures:
            parse_rates(self.failures)
        known = [name for name in KNOWLEDGE if name != NOTHING]
        odd = next((name for name in (self.cluster, *self.more_clusters) if not name.isprintable()), "")
        return [
            (not odd, f"cluster: {shorten(odd)!r} should be a name or a file, in one line"),
            rule_of_rising("interval_factor", self.interval_factor),
            rule_of_rising("contention", self.contention),
            (self.knows in known, f"knows must be one of {', '.join(known)}: learned schedulers read estimates"),
        ]


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """See `env.reward` and `potential`; all terms are divided by `scale`."""

    jobs: float = 0.0
    lost: float = 1.0
    progress: float = 0.0
    interference: bool = True  # False: slowdowns count neither in `lost` nor in the potential
    scale: Positive = 20.0
    potential: float = 1.0  # weight of the shaping, 0 = off
    potential_waiting: float = 0.3
    team_share: Share = 0.5  # share of the reward that is the mean over all schedulers

    def weights(self) -> RewardWeights:
        """What the environment's own reward is made with."""
        scale = self.scale
        return reward_weights(self.jobs / scale, self.lost / scale, self.progress / scale, self.interference)


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """How much is collected, and the estimator."""

    num_envs: Many = 64
    steps: Many = 96  # per chunk and environment: decision rounds, or turns on an accelerator
    chunks: Chunks = 60
    epochs: Many = 2
    minibatches: Many = 8
    keep: PositiveShare = 0.5  # share of the rounds that are learned from, those with real choices first
    busy: PositiveShare = 0.75  # share of all halves of menus that may hold something; more is not learned from
    learning_rate: Positive = 2e-3
    gamma: Annotated[float, Meta(gt=0, lt=1)] = 0.98  # per `env.interval_s` at pace 1; 1 between rounds of one boundary
    gae_lambda: Share = 0.9
    clip: Positive = 0.2
    entropy: NotNegative = 0.003
    value_weight: NotNegative = 0.5
    max_grad_norm: Positive = 0.5
    critic_only_chunks: Count = 2
    restart_share: Share = 1 / 6  # of the environments, between chunks
    shards: Many = 1  # of the environments, each on a device of its own if there are enough, see `learning.devices`

    def rules(self) -> Rules:
        """What must hold of several of these together."""
        learned = int(self.num_envs // self.shards * self.steps * self.keep)
        return [
            (learned >= self.minibatches, f"{self.minibatches} minibatches of {learned} kept rounds are empty"),
            (self.num_envs % self.shards == 0, f"shards: {self.shards} must divide num_envs ({self.num_envs})"),
        ]


@dataclasses.dataclass(frozen=True)
class StartConfig:
    """What the weights are at first, and which of them stay so."""

    checkpoint: str = ""  # name or folder of one whose weights they are; "": new ones, drawn with the seed
    freeze: tuple[str, ...] = ()  # parts of the network that are not learned, by their names in the weights


@dataclasses.dataclass(frozen=True)
class ValidationConfig:
    """Greedy runs on fixed worlds between chunks; the best weights by mean JCT are the checkpoint."""

    every: Chunks = 10
    seeds: Many = 16
    jobs: Jobs = 160
    load: Positive = 0.85
    geometric: bool = False  # the mean over worlds, so that those with long queues do not outweigh the others
    seed: Seed | None = 0  # of the worlds, the same for all trainings; None: that of training
