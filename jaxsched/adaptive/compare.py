"""Policies on a workload, from the files of a command: who is played, what is refused, tables and lines of jobs."""

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from jaxsched import shipped
from jaxsched.adaptive import learned
from jaxsched.adaptive.contention import NO_NETWORK, network_of
from jaxsched.adaptive.policies import POLICIES
from jaxsched.adaptive.profiles import Application, read_applications
from jaxsched.adaptive.simulate import NO_OUTAGES, Nodes, Result, Rules, begin_of, rounds_of, simulate
from jaxsched.adaptive.state import Network
from jaxsched.adaptive.view import AllocationPolicy
from jaxsched.adaptive.workload import Job, applications_in, read_workload
from jaxsched.calibration.interference.named import interference_model
from jaxsched.cluster.inventory import Inventory
from jaxsched.cluster.outages import Outages, draw_outages, parse_rates, read_outages
from jaxsched.cluster.presets import get_inventory
from jaxsched.cluster.servers import partition_rows
from jaxsched.errors import UserError
from jaxsched.io.cards import what_of
from jaxsched.policies.registry import check_once, load_from_file

NO_INTERFERENCE = "none"
JOB_COLUMNS = (
    "name", "application", "submit_s", "start_s", "finish_s", "jct_s", "gpu_h", "restarts", "deadline_s",
)  # fmt: skip
# Options of `simulate` and `evaluate` that mean something where jobs have profiles.
MEANT = ("cluster", "schedulers", "gpu_speeds", "workload", "profiles", "policy", "policies")
MEANT_IN_TIME = ("interference", "interval_s", "failures", "failure_seed", "outages", "knows")
MEANT_FOR_OUTPUT = ("jobs_out", "json")


class Played(NamedTuple):
    """A policy, and what became of the jobs."""

    policy: str
    result: Result

    def figures(self) -> dict[str, float]:
        """Figures of the run, by name with its unit."""
        jct_s, jobs = self.result.jct_s, self.result.jobs
        found = {
            "jct_mean_s": float(jct_s.mean()),
            "jct_p99_s": float(np.percentile(jct_s, 99)),
            "makespan_s": float(self.result.finish_s.max() - min(job.submit_s for job in jobs)),
            "gpu_h_mean": float(self.result.gpu_s.mean() / 3600),
            "restarts_mean": float(self.result.restarts.mean()),
        }
        due_s = np.array([job.deadline_s for job in jobs])
        if np.isfinite(due_s).any():
            found["deadlines_met"] = float((self.result.finish_s <= due_s)[np.isfinite(due_s)].mean())
        return found


def play_files(command: Any, profiles: Path, policies: Sequence[str]) -> list[Played]:
    """Plays a command's policies.

    Args:
        command: the options of `jaxsched simulate` or `evaluate`, a dataclass.
        profiles: a folder with a folder for every application.
        policies: names, or FILE.py:NAME.

    Raises:
        UserError: a mistake, or an option that has no effect where jobs have profiles.
    """
    _check_options(command)
    found = [find_policy(name) for name in policies]
    check_once([policy.name for policy in found])
    inventory = get_inventory(command.cluster, command.gpu_speeds)
    kinds, names = tuple(kind.kind for kind in nodes_of(inventory, command.cluster)), applications_in(command.workload)
    apps = read_applications(profiles, kinds, names=names)
    jobs = read_workload(command.workload, apps)
    rules = Rules(period_s=command.interval_s, fits=command.settings().only_seen)
    parts = parts_of(command, inventory, outages_of(command, inventory, jobs))
    return [Played(policy.name, play_parts(policy, apps, jobs, parts, rules)) for policy in found]


class Part(NamedTuple):
    """Nodes that are played together, and the schedulers that have them."""

    nodes: tuple[Nodes, ...]
    outages: Outages
    schedulers: tuple[int, ...]
    owner: tuple[int, ...]  # place in `schedulers` of every node's; empty: there is one
    network: Network


def parts_of(command: Any, inventory: Inventory, outages: Outages) -> list[Part]:
    """One for each scheduler of a command, or, where jobs contend, one for all, which share links.

    UserError if they cannot be had.
    """
    if inventory.partitions:
        inventory.build(command.schedulers)  # refuses another number of schedulers
        rows = [np.asarray(part) for part in inventory.partitions.values()]
    else:
        count = inventory.schedulers if command.schedulers is None else command.schedulers
        rows = [block[block >= 0] for block in partition_rows(len(inventory.servers), count)]
    schedulers = tuple(range(len(rows)))
    if command.interference == NO_INTERFERENCE:
        return [_part(command, inventory, of_one, (p,), outages) for p, of_one in zip(schedulers, rows, strict=True)]
    owner = np.empty(len(inventory.servers), np.int32)
    for p, of_one in zip(schedulers, rows, strict=True):
        owner[of_one] = p
    order, law = in_order(inventory, np.arange(len(owner))), interference_model(command.interference)
    whole = _part(command, inventory, order, schedulers, outages)
    return [whole._replace(owner=tuple(owner[order].tolist()), network=network_of(inventory, order, law))]


def in_order(inventory: Inventory, rows: Int[np.ndarray, "N"]) -> Int[np.ndarray, "N"]:
    """Rows of servers, those of one GPU type after those of another, in the order in which types first appear."""
    types = [inventory.servers[row].gpu_type for row in rows]
    return rows[np.argsort([list(dict.fromkeys(types)).index(kind) for kind in types], kind="stable")]


def _part(
    command: Any, inventory: Inventory, rows: Int[np.ndarray, "N"], schedulers: tuple[int, ...], outages: Outages
) -> Part:
    """Some servers, among which nothing contends."""
    order = in_order(inventory, rows)
    place = np.full(len(inventory.servers), -1)
    place[order] = np.arange(len(order))
    of_part = np.isin(outages.server, order)
    mine = Outages(place[outages.server[of_part]], outages.from_s[of_part], outages.to_s[of_part])
    here = dataclasses.replace(inventory, servers=tuple(inventory.servers[row] for row in rows), partitions={})
    return Part(nodes_of(here, command.cluster), mine, schedulers, (), NO_NETWORK)


def play_parts(
    policy: AllocationPolicy, apps: Mapping[str, Application], jobs: Sequence[Job], parts: Sequence[Part], rules: Rules
) -> Result:
    """Every scheduler plays its jobs, round robin in the order of submission, on its nodes; see docs/semantics.md."""
    whole, count = np.zeros((4, len(jobs))), sum(len(part.schedulers) for part in parts)
    for part in parts:
        lists = [jobs[p::count] for p in part.schedulers]
        if any(lists):
            mine = dataclasses.replace(rules, outages=part.outages, owner=part.owner, network=part.network)
            for p, one in zip(part.schedulers, simulate(policy, apps, lists, part.nodes, mine), strict=True):
                whole[:, p::count] = one.start_s, one.finish_s, one.gpu_s, one.restarts
    start_s, finish_s, gpu_s, restarts = whole
    return Result(jobs, start_s, finish_s, gpu_s, restarts.astype(int))


def find_policy(name: str) -> AllocationPolicy:
    """The policy of a name, of a folder of learned weights, or of FILE.py:NAME. UserError if there is none."""
    if name in POLICIES:
        return POLICIES[name]
    folder = shipped.find(shipped.CHECKPOINTS, name) or Path(name)
    if what_of(folder) == learned.WHAT:
        return learned.load(folder, name)
    if ".py:" not in name:
        raise UserError(
            f"{name!r} is no policy for jobs with profiles; give {', '.join(POLICIES)}, FILE.py:NAME, or the "
            "folder of a learned allocation"
        )
    return AllocationPolicy(name, load_from_file(name))


def nodes_of(inventory: Inventory, where: str) -> tuple[Nodes, ...]:
    """Nodes by GPU type. UserError if nodes of one type have different numbers of GPUs."""
    sizes: dict[str, list[int]] = {}
    for server in inventory.servers:
        sizes.setdefault(server.gpu_type, []).append(sum(server.groups))
    for kind, gpus in sizes.items():
        if len(set(gpus)) > 1:
            raise UserError(
                f"{where}: servers with {kind} have {min(gpus)} to {max(gpus)} GPUs, should all have the same"
            )
    return tuple(Nodes(len(gpus), gpus[0], kind) for kind, gpus in sizes.items())


def outages_of(command: Any, inventory: Inventory, jobs: Sequence[Job]) -> Outages:
    """The outages that a command asks for, of the cluster's servers in their order.

    A file counts from the first submission on; drawn ones begin with the first round.
    """
    names, found, from_s = inventory.names, NO_OUTAGES, 0.0
    if command.outages is not None:
        found, from_s = read_outages(command.outages, names), jobs[0].submit_s
    elif command.failures:
        span_s = rounds_of([jobs], command.interval_s) * command.interval_s
        found = draw_outages(len(names), parse_rates(command.failures), span_s, command.failure_seed)
        from_s = begin_of([jobs], command.interval_s)
    return Outages(found.server, found.from_s + from_s, found.to_s + from_s)


def as_table(played: Sequence[Played]) -> str:
    """A line for every policy."""
    rows = [(one.policy, one.figures()) for one in played]
    names = list(rows[0][1])
    width = max(len("policy"), *(len(policy) for policy, _ in rows))
    lines = [f"{'policy':{width}} " + " ".join(f"{name:>14}" for name in names)]
    lines += [f"{policy:{width}} " + " ".join(f"{of[name]:14,.2f}" for name in names) for policy, of in rows]
    return "\n".join(lines)


def write_jobs(result: Result) -> str:
    """A CSV file: a line for every job."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(JOB_COLUMNS)
    rows = zip(result.jobs, result.start_s, result.finish_s, result.jct_s, result.gpu_s, result.restarts, strict=True)
    for job, start_s, finish_s, jct_s, gpu_s, restarts in rows:
        due = "" if np.isinf(job.deadline_s) else f"{job.deadline_s:.12g}"
        times = (f"{value:.12g}" for value in (job.submit_s, start_s, finish_s, jct_s, gpu_s / 3600))
        writer.writerow((job.name, job.application, *times, restarts, due))
    return file.getvalue()


def _check_options(command: Any) -> None:
    for field in dataclasses.fields(command):
        if field.name in (*MEANT, *MEANT_IN_TIME, *MEANT_FOR_OUTPUT):
            continue
        if getattr(command, field.name) != field.default:
            raise UserError(f"--{field.name.replace('_', '-')}: has no effect with --profiles; leave it out")
