"""`jaxsched kube whatif`: when would the pending gangs start, and behind whom."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxsched.cli.options import Output, optional, plan_settings

if TYPE_CHECKING:
    from jaxsched.kube.read.gangs import Gang
    from jaxsched.kube.read.objects import Pod
    from jaxsched.kube.read.settings import PlanSettings
    from jaxsched.kube.read.snapshot import Snapshot
    from jaxsched.kube.whatif.forecast import Forecast
    from jaxsched.kube.whatif.recorded import History

Seconds = Annotated[float, tyro.conf.arg(metavar="X")]
MOST_NAMES = 4  # of nodes and gangs in a line of the table; --json has all


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whatif:
    """When would the pending gangs start? Read-only."""

    recording: Annotated[Path | None, tyro.conf.Positional, optional("RECORDING")] = None
    """A file written by `jaxsched kube run --record` (default: the live cluster)."""
    at_s: Annotated[float | None, optional("X")] = None
    """Seconds after the first line of the recording (default: its end)."""
    manifest: Annotated[Path | None, tyro.conf.arg(aliases=["-f"], metavar="FILE", help_behavior_hint="")] = None
    """Objects that are not submitted yet (.yaml, .json), as if they were, now, to this scheduler: Pod, Job, JobSet,
    PyTorchJob and the like, LeaderWorkerSet, RayCluster."""
    priority: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Priority of the manifest's pods."""
    policies: Annotated[tuple[str, ...], tyro.conf.arg(metavar="A B ...")] = ("greedy-wait", "pack")
    """Hand-written policies; see `jaxsched evaluate --help`."""
    duration_error: Seconds = 0.5
    """Run times are the stated ones * exp(X z), z standard normal, given how long a gang has run."""
    draws: Annotated[int, tyro.conf.arg(metavar="N")] = 100
    """Futures that are played, the same under all policies."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Of the draws."""
    horizon_s: Seconds = 7 * 86400.0
    """Later starts are not looked for."""
    interval_s: Seconds = 10.0
    """Seconds between decisions in the simulation."""
    history: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")] = ()
    """Recordings; gangs go on coming as in them, drawn anew for every future (default: nobody else comes)."""
    kubeconfig: Annotated[Path | None, optional("FILE")] = None
    """Credentials (default: $KUBECONFIG, ~/.kube/config, or the pod's service account)."""
    context: Annotated[str | None, optional("NAME")] = None
    """Context of the kubeconfig (default: its current one)."""
    scheduler_name: str = "jaxsched"
    """Pods with this spec.schedulerName are those that wait; the pods of all others hold GPUs."""
    topology: Annotated[str, tyro.conf.arg(metavar="PRESET|LABEL,LABEL")] = "auto"
    """Node labels from rack outwards: kueue, topograph, topograph-tier, zone, volcano, clique, or labels (auto: the
    first there)."""
    domain_block: int = 0
    """Racks are NVLink domains, of which a gang takes so many nodes at most under +racks: 16 for NVL72."""
    partition_label: str = ""
    """Node label that names a partition (default: partitions of equal size)."""
    schedulers: Annotated[int | None, optional("N")] = None
    """Partitions (default: one per 16 GPU nodes)."""
    default_duration_s: Seconds = 3600.0
    """Run time of pods without the annotation jaxsched.io/duration-seconds."""
    gpu_resource: str = "nvidia.com/gpu"
    """What GPUs are requested as: amd.com/gpu, nvidia.com/mig-1g.5gb, ..."""
    gpu_speeds: Annotated[Path | None, optional("FILE")] = None
    """GPU products or types beside the known ones, or other speeds, YAML: {RTX-9090: 3.0}, V100 = 1."""
    json: Output = None
    """Also write the answers as JSON."""

    def run(self) -> None:
        """Read, play, print. UserError on any mistake."""
        import json
        import warnings

        from jaxsched.cli.output import results, text
        from jaxsched.errors import DoubtfulFile
        from jaxsched.event_loop import numba_missing
        from jaxsched.io.files import check_outputs
        from jaxsched.io.yaml_file import read_yaml_documents
        from jaxsched.kube.capacity.fleet import warn_of_products
        from jaxsched.kube.read.manifest import manifest_pods
        from jaxsched.kube.whatif.forecast import forecast_starts
        from jaxsched.kube.whatif.rollouts import Question
        from jaxsched.policies.registry import parse_all

        inputs = [one for one in (self.recording, self.manifest, self.gpu_speeds, *self.history) if one is not None]
        check_outputs({"--json": self.json}, inputs)
        question = Question(self.draws, self.duration_error, self.seed, self.horizon_s, self.interval_s)
        settings = plan_settings(
            scheduler_name=self.scheduler_name,
            topology=self.topology,
            domain_block=self.domain_block,
            partition_label=self.partition_label,
            schedulers=self.schedulers,
            default_duration_s=self.default_duration_s,
            gpu_resource=self.gpu_resource,
            gpu_speeds=self.gpu_speeds,
        )
        policies = parse_all(self.policies)
        more: Sequence[Pod] = ()
        if self.manifest is not None:  # its mistakes are told before a cluster is read
            documents = read_yaml_documents(self.manifest, "docs/kubernetes.md")
            more = manifest_pods(documents, str(self.manifest), 0.0, settings, self.priority)
        shot = self._snapshot()
        more = [dataclasses.replace(pod, created_s=shot.now_s) for pod in more]
        shot = dataclasses.replace(shot, pods=(*shot.pods, *more))
        warn_of_products(shot.nodes, settings)
        history = self._history(shot.now_s, settings)
        if why := numba_missing():
            warnings.warn(f"futures are played in plain Python, which may take long: {why}", DoubtfulFile, stacklevel=2)
        found = forecast_starts(shot, policies, settings, question, history)
        with results() as write:
            rows = [_json(answer, settings) for answer in found]
            came = None if history is None else {"gangs": len(history.gangs), "seconds": history.span_s}
            said = {"now_s": shot.now_s, "history": came, "answers": rows}
            write(self.json, text(json.dumps(said, indent=1) + "\n"))
            if history is not None:
                print(f"others come like the {len(history.gangs)} gangs of the last {_words(history.span_s)} recorded")
            if not found:
                print(_nobody(shot, settings))
            for line in _lines(found, question.horizon_s):
                print(line)

    def _history(self, now_s: float, settings: "PlanSettings") -> "History | None":
        """Of what came before that moment."""
        if not self.history:
            return None
        from jaxsched.kube.cluster.record import read_recording
        from jaxsched.kube.whatif.recorded import cut_into_blocks, read_arrivals

        stretches = [read_arrivals(read_recording(path), settings, now_s) for path in self.history]
        return cut_into_blocks([one for one in stretches if one is not None])

    def _snapshot(self) -> "Snapshot":
        from jaxsched.errors import UserError

        if self.recording is None:
            if self.at_s is not None:
                raise UserError("--at-s: is for recordings, give one")
            from jaxsched.kube.cluster.api import connect
            from jaxsched.kube.cluster.informers import live_snapshot

            return live_snapshot(connect(str(self.kubeconfig) if self.kubeconfig else None, self.context))
        from jaxsched.kube.cluster.record import read_recording
        from jaxsched.kube.whatif.recorded import read_snapshot

        if self.at_s is not None and not self.at_s >= 0.0:
            raise UserError(f"--at-s: {self.at_s} should be a number of seconds of at least 0")
        return read_snapshot(read_recording(self.recording), self.at_s)


def _nobody(shot: "Snapshot", settings: "PlanSettings") -> str:
    """That no gang waits; whose pods do, if others' do."""
    from jaxsched.kube.read.objects import DONE_PHASES

    there = [pod for pod in shot.pods if not pod.terminating and pod.phase not in DONE_PHASES]
    waiting = [pod.scheduler for pod in there if not pod.node and pod.units(settings.gpu_resource)]
    others = Counter(name for name in waiting if name != settings.scheduler_name)
    if not others:
        return "no gang is pending"
    named = ", ".join(f"{count} of {name!r}" for name, count in others.most_common())
    ours = f"no gang of the scheduler {settings.scheduler_name!r} is pending"
    return f"{ours}, but pods are: {named}; name it with --scheduler-name"


def _lines(found: "Sequence[Forecast]", horizon_s: float) -> Iterator[str]:
    """For people: a table for each policy."""
    names = {answer.gang.key: _name(answer.gang) for answer in found}
    for policy in dict.fromkeys(answer.policy for answer in found):
        yield f"under {policy}:"
        rows = [("gang", "waits", "starts in (5% to 95%)", "on", "behind")]
        rows += [_row(answer, names, horizon_s) for answer in found if answer.policy == policy]
        widths = [max(len(row[column]) for row in rows if len(row) == 5) for column in range(4)]
        widths[0] = max(len(row[0]) for row in rows)
        for row in rows:
            yield "  " + "  ".join(f"{cell:{width}}" for cell, width in zip(row, [*widths, 0])).rstrip()
    held_up = {names[answer.gang.key]: ", ".join(answer.beyond_gpus) for answer in found if answer.beyond_gpus}
    for resources in dict.fromkeys(held_up.values()):
        gangs = _some([name for name, own in held_up.items() if own == resources])
        why = f"of {resources}, which is not looked at, some pods ask for more than of GPUs"
        yield f"{why}: {gangs} may start later, or elsewhere"
    left_out = {names[one.gang.key] for one in found if one.reason is not None and one.reason.reason == "NotSimulated"}
    if left_out and len(left_out) < len(names):
        yield f"not simulated: {_some(sorted(left_out))}; others may start later than said, or elsewhere"


def _row(answer: "Forecast", names: dict[str, str], horizon_s: float) -> tuple[str, ...]:
    name, waits = names[answer.gang.key], _words(answer.waits_s)
    if answer.median_s is None or answer.low_s is None or answer.high_s is None:
        assert answer.reason is not None
        return name, waits, f"not known: {answer.reason.message}"
    beyond = f"not within {_words(horizon_s)}"
    if answer.reason is not None:
        return name, waits, f"{beyond}: {answer.reason.message}"
    low, median, high = (
        _words(one) if one < horizon_s else beyond for one in (answer.low_s, answer.median_s, answer.high_s)
    )
    now = answer.high_s == 0.0
    behind = _some([names[key] for key in answer.behind]) or ("nobody" if now else "what runs now")
    return name, waits, "now" if now else f"{median} ({low} to {high})", _some(answer.nodes) or "-", behind


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _name(gang: "Gang") -> str:
    """Of a gang that its controller makes, what its pods' names begin with: its key holds a uid."""
    if gang.pending[0].owner[1] and gang.pending[0].owner[1] in gang.key:
        pods = [pod.name for pod in gang.pending]
        return f"{gang.namespace}/{_common(min(pods), max(pods)).rstrip('-') or pods[0]}"
    return gang.key


def _common(one: str, other: str) -> str:
    """What both begin with."""
    alike = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), len(one))
    return one[:alike]


def _words(seconds: float) -> str:
    whole = round(seconds)
    for unit, size, part, small in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole // 60} min" if whole >= 600 else f"{whole} s"


def _json(answer: "Forecast", settings: "PlanSettings") -> dict[str, Any]:
    """For machines. Times in seconds from now; null where there is none, see `reason`."""
    finite = {
        name: value if value is not None and value < float("inf") else None
        for name, value in (("median_s", answer.median_s), ("low_s", answer.low_s), ("high_s", answer.high_s))
    }
    gang = answer.gang
    return {
        "policy": answer.policy,
        "gang": gang.key,
        "name": _name(gang),
        "priority": gang.priority,
        "gpus": sum(pod.units(settings.gpu_resource) for pod in gang.workers),
        "waits_s": answer.waits_s,
        **finite,
        "nodes": list(answer.nodes),
        "not_looked_at": list(answer.beyond_gpus),
        "behind": list(answer.behind),
        "reason": answer.reason.reason if answer.reason else None,
        "message": answer.reason.message if answer.reason else None,
    }
