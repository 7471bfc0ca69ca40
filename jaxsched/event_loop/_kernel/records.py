"""What the event loop reads (`World`) and writes (`Tables`), as tuples of NumPy arrays.

Axes as in `cluster.hardware` and `env.state`. Groups of a partition lie on one axis, `NK`. *Wires* of all partitions
lie on one axis: `p * 2N + s` is QPI of server `s`, `p * 2N + N + s` its NIC, after those come the links.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int8, Int32, Int64

Records = Any  # a structured array, whose fields Numba knows (`w.jobs[j].home`) and a type checker does not


def _record(**fields: str) -> np.dtype:
    return np.dtype(list(fields.items()), align=True)


# What does not change.
SITE_GROUP = _record(gpus="i8", cores="f8", pcie_bytes_s="f8")
SITE_SERVER = _record(qpi_bytes_s="f8", nic_bytes_s="f8", rack="i8", block="i8")  # `block`: as `Cluster.domain_block`
MODEL = _record(
    compute_s="f8", gradient_bytes="f8", cpu_cores="f8", ps_cores="f8", input_bytes="f8", sens_cpu="f8", sens_pcie="f8"
)
# `key` is that of the queue's order; `wide`: GPUs per worker; `home` -1: rejected; `held`: it does not start
# before that boundary, for a search holds it back. Where policies know the history, and no more, `estimate_s`, `key`
# and `area` are those of the present boundary. `size`: as `wide`, but minus the thousandths of a fraction of a GPU;
# `share` is that fraction, 1 for whole ones; `allowed`: its set of GPUs, see `Site.usable`;
# `cpu`, `memory`: what each worker reserves.
JOB = _record(
    arrival="i8", duration_s="f8", estimate_s="f8", ideal_s="f8", ideal_comm_s="f8", key="f4", area="f4", workers="i8",
    wide="i8", size="i8", share="f8", ps="i8", model="i8", tenant="i8", home="i8", held="i8", allowed="i8", cpu="i8",
    memory="i8",
)  # fmt: skip
LAW = _record(kappa="f8", power="f8")

# What changes. `next_early_s`: from then on the first job is as good as done; `stale` 1: since the last `refresh` jobs
# have come or gone, or some that run here are affected by others; `target`: where
# the job at the place `chosen` of the queue goes in this round, -1 = nowhere; `room`: free queue slots before it;
# `settled`: up to that boundary nothing here is to be started or stopped, if nobody comes, goes or changes speed;
# `anchor`, `way`: of its candidate placement (`candidates.WAYS`), or `anchor`, `gpu`: the group of a fraction, and the
# index of its GPU that a policy names, -1 = none; `gang` for which GPUs are kept, -1 = none, `wait_s` and `spare`: see
# `openings`; `least` of the candidate; `base`: of that which the job has now, 0: not looking ahead, see `looking`.
PARTITION = _record(
    free_gpus="i8", queued="i8", running="i8", next_finish_s="f8", next_early_s="f8", stale="i8", waited="i8",
    settled="i8", target="i8", chosen="i8", room="i8", anchor="i8", way="i8", gpu="i8", gang="i8", wait_s="f8",
    spare="i8", least="f8", base="f8",
)  # fmt: skip
# `finish_s`: when it ends if nothing changes, of a new job its duration; `slowdown` 0: a new job; `slot`: of its print.
# `resume_s`: when its restart is over.
RUNNING = _record(finish_s="f8", early_s="f8", resume_s="f8", slowdown="f8", job="i8", slot="i8")
# Of a footprint: how many it has, how many wires are no links (`near`, they come first), its least slowdown, its job,
# and the index in its group of a shared GPU, -1 = none; `next`: another footprint on that GPU, -1 = none; `compute_s`,
# `comm_s`: but for links and for who shares a GPU, as of the last `refresh`.
SLOT = _record(
    groups="i8", wires="i8", near="i8", least="f8", job="i8", gpu="i8", next="i8", compute_s="f8", comm_s="f8"
)  # fmt: skip
GROUP = _record(group="i8", workers="i8", cpu="f8", pcie="f8", compute="f8", base="f8")  # a job's use of one
WIRE = _record(wire="i8", row="i8", channel="i8", use="f8", base="f8")  # likewise; `row`: of `Tables.users`
ON_GROUP = _record(users="i8", cpu="f8", pcie="f8")  # totals
ON_WIRE = _record(users="i8", use="f8")
TENANT = _record(attained_s="f8", gpus="f8")
PLACE = _record(group="i8", workers="i8")  # of the placement at hand
ROOMY = _record(server="i8", key="i8")  # servers with room for a gang
# Of the placement at hand, or what a rule counts; `first`: rank of a job with a plan; `used`: see `send_by_plan`.
RACK = _record(workers="f8", ps="f8", servers="i8", first="i8", used="i8")
# Where domains sum up gradients of a plan first. Of a domain: its ranks, those of the communicator at hand, the bytes
# that they send `out` for it; `at`: which one holds members of it at this position. Of a place: its ranks, those of its
# server, `left` to `right`, the first one of its `domain`, and bytes of all communicators: of the rings in the domain,
# over the border before the place, from its server to others `near`, and `out`.
DOMAIN = _record(start="i8", end="i8", rack="i8", members="i8", out="f8", at="i8")
SHARE = _record(
    start="i8", end="i8", left="i8", right="i8", domain="i8", ring="f8", border="f8", near="f8", out="f8"
)  # fmt: skip
# Up to the last start or stop, see `env.state.Service`; `level`: of a queued job; `exceed`: see `queues.measure`;
# `expected_s`: by the history; `reach`: what `greedy-wait` may hope for, 0: not yet known; `owed_s`: what others cost
# it that passed; `failure_restarts`: times that a failure stopped it, `fallen_s`: work lost so.
SERVICE = _record(
    left_s="f8", since="i8", ran="i8", stops="i8", restarting_s="f8", lost_s="f8", level="i8", exceed="f8",
    expected_s="f8", reach="f8", owed_s="f8", failure_restarts="i8", fallen_s="f8",
)  # fmt: skip
# As `Starts` of the environment's state.
START = _record(job="i8", partition="i8", boundary="i8", ran="i8", stops="i8", failure_restarts="i8", gpu="i8")
# `start`: a boundary; -1, NaN, -1: not yet; `gpu`: the partition's shared GPU of a fraction, -1 = none.
RECORD = _record(start="i8", finish_s="f8", partition="i8", forwards="i8", gpu="i8")

# Places in `Tables.numbers`; LEARNED: jobs of which estimates know.
NEXT_JOB, BOUNDARY, ROUNDS, FINISHED, PEAK_RUNNING, PEAK_QUEUE, LEARNED = range(7)
NEXT_CHANGE, STARTED = 7, 8  # boundary at which a server goes out or comes back; starts in the log
NEWS, COUNT = 9, 10  # the last boundary for which jobs have come, or ended since the one before
BY_RUN_TIME, BY_AREA = 1, 2  # how `JOB.key` hangs on estimates; 0: not at all


class Past(NamedTuple):
    """As `env.state.History`, with what each job adds to it; without rows if policies do not know it."""

    classes: Int64[np.ndarray, "J stages"]
    steps: Int64[np.ndarray, "J"]  # its run time
    bin: Int64[np.ndarray, "J"]  # its service
    grid: Float32[np.ndarray, "steps"]
    seconds: Float32[np.ndarray, "means"]


class Known(NamedTuple):
    """What has been noted; see `env.state.History`."""

    jobs: Int64[np.ndarray, "classes"]
    steps: Int64[np.ndarray, "classes"]
    served: Int64[np.ndarray, "bins"]
    levels: Int64[np.ndarray, "bins"]  # of the order `gittins`


class Sharing(NamedTuple):
    """How jobs that share a GPU slow each other down: the law of `dynamics.sharing`, with `A` members."""

    kind: Int64[np.ndarray, "P NK"]  # which GPU type of the law a group has, -1: not covered
    pressure: Float64[np.ndarray, "A T models C"]
    reach: Float64[np.ndarray, "A T models C"]  # `softplus` of the sensitivity
    stands: Float64[np.ndarray, "A T models H"]  # where hidden units stand without co-runners
    mix: Float64[np.ndarray, "A C H"]  # `softplus` of what is fitted, as is the next
    gain: Float64[np.ndarray, "A H"]
    factors: Float64[np.ndarray, "models models"]  # true ones of pairs of models; none: all are 1
    known: bool  # policies know them
    observed: bool  # the policy goes by what it has seen of them


class Site(NamedTuple):
    """The cluster."""

    groups: Records  # SITE_GROUP[P, NK]
    servers: Records  # SITE_SERVER[P, N]
    links: Float64[np.ndarray, "links"]  # bytes/s
    link_id: Int64[np.ndarray, "P E"]
    path: Int32[np.ndarray, "P T T H"]  # links between racks, as `cluster.hardware` has them
    path_share: Float32[np.ndarray, "P T T H"]  # 0 behind the last of them
    uneven: Int64[np.ndarray, "P"]  # as in `Cluster`
    reach_first: Int64[np.ndarray, "L+2"]  # where the partitions that reach a link begin in `reach`
    reach: Int64[np.ndarray, "pairs"]
    reach_row: Int64[np.ndarray, "pairs"]  # of `Tables.users` for that link in that partition
    partition_gpus: Int64[np.ndarray, "P"]
    group_tier: Int64[np.ndarray, "P NK"]  # how many speeds of GPUs are above the group's
    group_gpus: Int64[np.ndarray, "P NK"]  # as in `groups`
    largest: Int64[np.ndarray, "P 2"]  # GPUs of the largest group and rack
    reservable: Int64[np.ndarray, "P N 2"]  # as in `Cluster`
    usable: Int8[np.ndarray, "A P NK"]  # 1 for the groups that jobs of a set of GPU types may use; set 0: all


class Rule(NamedTuple):
    """What the policy says."""

    kind: int  # as in `rules`
    backfill: bool
    forward: int  # as in `openings`
    by_tenant: bool  # queues are in order of what tenants have received, not of `key`
    reserve: bool  # GPUs are kept for blocked gangs
    timed: bool  # what is chosen depends on the clock
    settles: bool  # who has waited waits until something changes in its partition, or levels do
    window: int  # of `greedy-wait`, as all that follows: so many jobs are looked at
    threshold: float
    patience: float
    ahead: bool  # it looks ahead, and has no need of these two but for fractions of a GPU
    lifetimes: bool
    looks: bool  # `greedy-wait` or `match`, which appraise candidates
    alike: bool  # `match` where jobs may be stopped: all seconds count the same
    seek: Float64[np.ndarray, "numbers"]  # of the index by which jobs are sent to other partitions; none: they are not
    order: int  # as in `queues`; -1: queues are not in order of levels
    quantum: float
    margin: int  # levels
    level_table: Int64[np.ndarray, "widths bins"]  # 0 where the order is none
    consolidate: bool  # a gang starts only on as few servers as it would need in an empty partition
    racks: bool  # likewise, in as few racks, and it sees no other ones
    preempts: bool  # the rule stops jobs, as the world allows
    faster: bool  # jobs go where their GPUs are faster, which there are
    moves: bool  # running ones, too
    keyed: int  # BY_RUN_TIME, BY_AREA or 0


class Stops(NamedTuple):
    """What it costs to stop a job, and which servers fail."""

    restart_s: float
    checkpoint_s: float
    min_run_s: float
    fails: bool  # servers fail
    changes: Int64[np.ndarray, "P N C"]  # boundaries at which they go out and come back, as `env.state.Failures`


class Plans(NamedTuple):
    """As `workload.patterns.PatternTable`; without rows where no model has a plan."""

    gpus: Int64[np.ndarray, "models"]
    stride: Int64[np.ndarray, "models patterns"]
    size: Int64[np.ndarray, "models patterns"]
    nbytes: Float64[np.ndarray, "models patterns"]
    summed: Float64[np.ndarray, "models 2"]  # zeros where gradients are rings
    tree: Int64[np.ndarray, "models"]


class World(NamedTuple):
    """The cluster, the jobs and the policy of a run."""

    site: Site
    models: Records  # MODEL[models]
    plans: Plans
    speed: Float64[np.ndarray, "models P NK"]  # over that on the cluster's reference type
    tier_speed: Float64[np.ndarray, "A models tiers"]  # as `speed`, on a set's GPUs of each tier, 0: there are none
    masks: bool  # rules do not see all free GPUs: some are slower, not for all jobs, or without CPUs or memory
    asks: bool  # jobs reserve CPUs or memory
    waits: bool  # GPUs differ, and jobs wait for faster ones if run times are known
    jobs: Records  # JOB[J], in order of submission
    law: Records  # LAW[channels], of stretches
    interval_s: float
    rounds: int
    max_forwards: int
    queue_slots: int
    running_slots: int
    horizon: int
    rule: Rule
    stops: Stops
    history: bool  # policies know that of finished jobs, and no run times
    past: Past
    shared_gpus: int  # S, of a group, that jobs may share; 0: all jobs have whole ones
    sharing: Sharing
    tenants: int  # V


def is_simple_world(w: World) -> bool:
    """Whether nothing is looked ahead for, sought, stopped, moved, kept whole or observed, and no model has a plan."""
    rule = w.rule
    special = rule.looks or len(rule.seek) > 0 or rule.preempts or rule.faster or rule.racks or w.sharing.observed
    return not special and len(w.plans.gpus) == 0


class SharedGPUs(NamedTuple):
    """GPUs that several jobs share, by partition, group and index; an entry of 0 thousandths is no shared GPU."""

    used: Int64[np.ndarray, "P NK S"]  # thousandths
    first: Int64[np.ndarray, "P NK S"]  # a footprint that lies there, -1 = none; `SLOT.next` leads on
    room: Int64[np.ndarray, "P NK"]  # the largest fraction that fits a shared GPU, in thousandths
    hidden: Int64[np.ndarray, "NK"]  # `room` that a rule does not see, taken from it
    without: Int64[np.ndarray, "NK S"]  # as `used`, of the partition at hand without some of its jobs
    sums: Float64[np.ndarray, "C"]  # pressure of co-runners
    rate: Float64[np.ndarray, "R"]  # slowdowns of the partition at hand as the policy believes them to be
    believed: Float64[np.ndarray, "models models"]  # factors of pairs
    seen_s: Float64[np.ndarray, "models models"]  # of each pair
    seen: Float64[np.ndarray, "models models"]  # sum of factors times these seconds


class Scratch(NamedTuple):
    """Room to work in; nothing in it is kept for the next round, and each function that needs some fills it."""

    place: Records  # PLACE[NK]
    first: Int64[np.ndarray, "NK"]  # rank of each place of a job with a plan
    taken: Int64[np.ndarray, "NK"]  # workers
    fits_server: Int64[np.ndarray, "N"]  # workers
    roomy: Records  # ROOMY[N]
    racks: Records  # RACK[T]
    domains: Records  # DOMAIN[NK]
    shares: Records  # SHARE[NK]
    sent: Float64[np.ndarray, "E"]  # bytes over the partition's links
    crossed: Int64[np.ndarray, "E"]  # the links for which that is not 0
    left_s: Float64[np.ndarray, "R"]  # ideal seconds that the running jobs of the partition at hand have left
    end_s: Float64[np.ndarray, "R"]  # seconds until they end
    exit_s: Float64[np.ndarray, "N"]  # seconds until the last job of each of its servers ends
    inputs: Float64[np.ndarray, "inputs"]  # of the index of `seek`, of the partition at hand
    anchors: Int64[np.ndarray, "anchors"]  # servers, -1 = none
    tried: Int64[np.ndarray, "C 1+NK"]  # placements: of how many groups, and each with its workers
    level: Int64[np.ndarray, "R"]  # of the running jobs of the partition at hand, LOWEST: may not be stopped
    most_without: Int64[np.ndarray, "N"]  # as `most`, of `without`
    without: Int64[np.ndarray, "NK"]  # free GPUs of the partition at hand without some of its jobs
    spare: Int64[np.ndarray, "N 2"]  # likewise, of what jobs reserve
    roomiest: Int64[np.ndarray, "N"]  # as `Tables.most` or `most_empty`, of a job that reserves something
    hidden: Int64[np.ndarray, "NK"]  # free GPUs that a rule does not see, taken from `free`
    kept_groups: Records  # ON_GROUP[...], totals without the placement that is tried
    kept_wires: Records  # ON_WIRE[...]


class Kept(NamedTuple):
    """What a partition has now, while it is looked at as it will be."""

    free: Int64[np.ndarray, "NK"]
    groups: Records  # ON_GROUP[NK]
    wires: Records  # ON_WIRE[2N+E], QPI and NICs, then links
    left_s: Float64[np.ndarray, "R"]
    rate: Float64[np.ndarray, "R"]
    exit_s: Float64[np.ndarray, "N"]


class Tables(NamedTuple):
    """The state of a run and room to work in."""

    scratch: Scratch
    numbers: Int64[np.ndarray, "numbers"]
    now_s: Float64[np.ndarray, "1"]
    free: Int64[np.ndarray, "P NK"]
    spare: Int64[np.ndarray, "P N 2"]  # what is left of `Site.reservable`
    fits: Int64[np.ndarray, "P A*G"]  # workers of so many GPUs that fit a set's GPUs; -1 = not since `free` changed
    most: Int64[np.ndarray, "P A*G N"]  # workers of so many GPUs that fit its 1, 2, ... roomiest servers; see `fits`
    most_empty: Int64[np.ndarray, "P A*G N"]  # the same of the empty cluster
    queue: Int64[np.ndarray, "P Q"]  # jobs in the policy's order
    partitions: Records  # PARTITION[P]
    running: Records  # RUNNING[P, R], dense; behind the running jobs `slot` says which are free
    slots: Records  # SLOT[P, R]
    groups: Records  # GROUP[P, R, ...]
    wires: Records  # WIRE[P, R, ...]
    on_group: Records  # ON_GROUP[P, NK]
    on_wire: Records  # ON_WIRE[wires]
    users: Int64[np.ndarray, "rows B"]  # bits of slots that use groups, wires but for links, links of each partition
    affected: Int64[np.ndarray, "P B"]  # bits of slots where a total is another one than at the last `refresh`
    inside: Int64[np.ndarray, "P B"]  # likewise, but for links
    tenants: Records  # TENANT[V]
    service: Records  # SERVICE[J]
    stops: Int8[np.ndarray, "P R"]  # 1: is to be stopped in this round
    records: Records  # RECORD[J]
    placement: Int8[np.ndarray, "J NK"]  # workers; without rows if not recorded
    starts: Records  # START[A], the log; without rows if there is none
    start_workers: Int8[np.ndarray, "A NK"]  # of each of them
    shared: SharedGPUs
    passed: Int64[np.ndarray, "P N"]  # changes of each server so far; odd: it is out
    known: Known
    kept: Kept
