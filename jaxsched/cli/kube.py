"""`jaxsched kube`: a policy schedules a Kubernetes cluster, or a recording of one is replayed."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxsched.cli.kube_whatif import Whatif
from jaxsched.cli.options import Output, optional, plan_settings

if TYPE_CHECKING:
    from jaxsched.kube.cluster.app import Options
    from jaxsched.kube.policy import GuardedPolicy
    from jaxsched.kube.read.settings import PlanSettings

HELP = """Schedule a Kubernetes cluster, ask when its gangs would start, or replay a recording of one.

run watches pods with our schedulerName, plans whole gangs and binds them; see docs/kubernetes.md. whatif says when the
pending gangs would start, and behind whom. replay simulates a recorded day under several policies.

Examples:
  jaxsched kube run --shadow --scheduler-name default-scheduler --record day.jsonl
  jaxsched kube run --checkpoint checkpoints/quickstart
  jaxsched kube replay day.jsonl --policies pack greedy-wait checkpoints/quickstart
  jaxsched kube whatif -f job.yaml --policies greedy-wait pack
  jaxsched kube whatif day.jsonl --at-s 3600
"""

Switch = tyro.conf.FlagCreatePairsOff[bool]
Number = Annotated[int | None, optional("N")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Watch pods, plan whole gangs, bind them."""

    checkpoint: Annotated[Path | None, optional("DIR")] = None
    """Folder of a checkpoint; the alternative to --policy."""
    policy: Annotated[str | None, optional("NAME")] = None
    """A hand-written policy (default: greedy-wait); see `jaxsched evaluate --help`."""
    kubeconfig: Annotated[Path | None, optional("FILE")] = None
    """Credentials (default: $KUBECONFIG, ~/.kube/config, or the pod's service account)."""
    context: Annotated[str | None, optional("NAME")] = None
    """Context of the kubeconfig (default: its current one)."""
    scheduler_name: str = "jaxsched"
    """Pods with this spec.schedulerName are ours; with --shadow: the scheduler to compare with."""
    dry_run: Switch = False
    """Plan and send every Binding with dryRun=All: the server checks them and changes nothing."""
    shadow: Switch = False
    """Write nothing; print what the policy would have done beside what the other scheduler did."""
    leader_elect: Switch = False
    """Hold a Lease, so that one of several replicas is active."""
    namespace: str = "jaxsched"
    """Namespace of the Lease."""
    identity: Annotated[str | None, optional("NAME")] = None
    """Name in the Lease (default: host name and process id)."""
    metrics_port: Annotated[int, tyro.conf.arg(metavar="PORT")] = 10259
    """Port of /metrics, /livez and /readyz; 0: any free one."""
    metrics_address: Annotated[str, tyro.conf.arg(metavar="IP")] = "127.0.0.1"
    """Where they are served; 0.0.0.0 or :: for all addresses, as the kubelet's probes need it."""
    metrics_auth: Switch = False
    """Ask the API server who may read /metrics: a bearer token of a user that may `get` it is needed."""
    metrics_certificate: Annotated[Path | None, optional("DIR")] = None
    """Serve them over TLS, with tls.crt and tls.key of this folder (default: plain HTTP)."""
    record: Output = None
    """Append every change and plan to this file, for `jaxsched kube replay`."""
    preemption: Switch = False
    """Evict gangs of lower priority, whole, if a plan shows that a higher one then starts."""
    gpu_resource: str = "nvidia.com/gpu"
    """What GPUs are requested as: amd.com/gpu, nvidia.com/mig-1g.5gb, ..."""
    gpu_speeds: Annotated[Path | None, optional("FILE")] = None
    """GPU products or types beside the known ones, or other speeds, YAML: {RTX-9090: 3.0}, V100 = 1."""
    topology: Annotated[str, tyro.conf.arg(metavar="PRESET|LABEL,LABEL")] = "auto"
    """Node labels from rack outwards: kueue, topograph, topograph-tier, zone, volcano, clique, or labels (auto: the
    first there)."""
    domain_block: int = 0
    """Racks are NVLink domains, of which a gang takes so many nodes at most under +racks: 16 for NVL72."""
    partition_label: str = ""
    """Node label that names a partition (default: partitions of equal size)."""
    schedulers: Number = None
    """Partitions, each with its own agent (default: one per 16 GPU nodes)."""
    default_model: str = "resnet50"
    """Model profile of pods without the annotation jaxsched.io/model."""
    default_duration_s: Annotated[float, tyro.conf.arg(metavar="X")] = 3600.0
    """Run time of pods without the annotation jaxsched.io/duration-seconds."""
    patience_s: Annotated[float, tyro.conf.arg(metavar="X")] = 600.0
    """A gang that fits and that the policy leaves waiting for longer is placed by the fallback."""
    decision_timeout_s: Annotated[float, tyro.conf.arg(metavar="X")] = 30.0
    """A decision that takes longer is made by the fallback."""
    nic_gbits_s: Annotated[float, tyro.conf.arg(metavar="X")] = 25.0
    """Network bandwidth of a node."""
    oversubscription: Annotated[float, tyro.conf.arg(metavar="X")] = 2.0
    """Of the racks' uplinks."""

    def run(self) -> None:
        """Until SIGTERM or SIGINT. UserError on any mistake; exit code 1 if the Lease is lost."""
        import logging
        import signal
        import sys
        import threading

        from jaxsched.kube.cluster.api import connect
        from jaxsched.kube.cluster.app import Scheduler
        from jaxsched.kube.cluster.monitoring import Metrics, MetricsAccess, read_certificate, serve
        from jaxsched.kube.plan.planner import Planner
        from jaxsched.kube.policy import GuardedPolicy

        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
        logging.getLogger("jax").setLevel(logging.WARNING)  # else it says which accelerators are not there
        self._check()
        settings = self._settings()
        api = connect(str(self.kubeconfig) if self.kubeconfig else None, self.context)
        metrics = Metrics()
        name = str(self.checkpoint) if self.checkpoint is not None else self.policy or "greedy-wait"
        policy = GuardedPolicy(name, settings, self.decision_timeout_s, beside=True)
        planner = Planner(policy, settings, self.patience_s)
        scheduler = Scheduler(api, planner, self._options(), metrics)
        more: dict[str, Any] = {"check": MetricsAccess(api).check} if self.metrics_auth else {}
        if self.metrics_certificate is not None:
            more["tls"] = read_certificate(self.metrics_certificate)
        server = serve(self.metrics_address, self.metrics_port, metrics, scheduler.livez, scheduler.readyz, **more)
        with _ended_while_compiling(policy):
            for number in (signal.SIGTERM, signal.SIGINT):
                # In a thread: the handler may interrupt the very lock that `stop` needs.
                signal.signal(number, lambda *_: threading.Thread(target=scheduler.stop).start())
            try:
                scheduler.start()
                logging.info("ready: %s, metrics on port %d", scheduler.options.mode, server.server_address[1])
                scheduler.run()
            finally:
                scheduler.close()
                server.shutdown()
            if scheduler.elector is not None and scheduler.elector.lost.is_set():
                sys.exit(1)

    def _check(self) -> None:
        from jaxsched.errors import UserError

        if self.checkpoint is not None and self.policy is not None:
            raise UserError("--checkpoint and --policy exclude each other: give one of them")
        if self.dry_run and self.shadow:
            raise UserError("--dry-run and --shadow exclude each other: give one of them")
        for name, value in {"--patience-s": self.patience_s, "--decision-timeout-s": self.decision_timeout_s}.items():
            if not 0.0 <= value <= 1e9:
                raise UserError(f"{name}: {value} should be a number of seconds of at least 0")

    def _settings(self) -> "PlanSettings":
        return plan_settings(
            scheduler_name=self.scheduler_name,
            gpu_resource=self.gpu_resource,
            topology=self.topology,
            domain_block=self.domain_block,
            partition_label=self.partition_label,
            schedulers=self.schedulers,
            default_model=self.default_model,
            default_duration_s=self.default_duration_s,
            nic_gbits_s=self.nic_gbits_s,
            oversubscription=self.oversubscription,
            preemption=self.preemption,
            gpu_speeds=self.gpu_speeds,
        )

    def _options(self) -> "Options":
        import os
        import socket

        from jaxsched.kube.cluster.app import Options

        return Options(
            mode="shadow" if self.shadow else "dry-run" if self.dry_run else "bind",
            leader_election=self.leader_elect,
            namespace=self.namespace,
            identity=self.identity or f"{socket.gethostname()}-{os.getpid()}",
            record=self.record,
            metrics_auth=self.metrics_auth,
        )


@contextlib.contextmanager
def _ended_while_compiling(policy: "GuardedPolicy") -> Iterator[None]:
    """Ends the process with the block if the policy is being compiled then, with the exit code that it has anyway."""
    from jaxsched.cli.errors import mistakes

    try:
        with mistakes():
            yield
    except SystemExit as end:
        _end_if_compiling(policy, end.code if isinstance(end.code, int) else 1)
        raise
    _end_if_compiling(policy, 0)


def _end_if_compiling(policy: "GuardedPolicy", code: int) -> None:
    """Python ends threads by an exception when they want to go on, which XLA does not let pass: it aborts."""
    import logging
    import os
    import sys

    if policy.is_compiling():
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay:
    """Simulate the gangs of a recording under several policies."""

    recording: Annotated[Path, tyro.conf.Positional]
    """A file written by `jaxsched kube run --record`."""
    policies: Annotated[tuple[str, ...], tyro.conf.arg(metavar="A B ...")] = ("pack", "greedy-wait")
    """Names of policies and folders of checkpoints."""
    scheduler_name: Annotated[str | None, optional("NAME")] = None
    """Only gangs of this scheduler (default: of all)."""
    topology: Annotated[str, tyro.conf.arg(metavar="PRESET|LABEL,LABEL")] = "auto"
    """Node labels from rack outwards: kueue, topograph, topograph-tier, zone, volcano, clique, or labels (auto: the
    first there)."""
    domain_block: int = 0
    """Racks are NVLink domains, of which a gang takes so many nodes at most under +racks: 16 for NVL72."""
    schedulers: Number = None
    """Partitions (default: one per 16 GPU nodes)."""
    gpu_resource: str = "nvidia.com/gpu"
    """What GPUs are requested as: amd.com/gpu, nvidia.com/mig-1g.5gb, ..."""
    gpu_speeds: Annotated[Path | None, optional("FILE")] = None
    """GPU products or types beside the known ones, or other speeds, YAML: {RTX-9090: 3.0}, V100 = 1."""
    interval_s: Annotated[float, tyro.conf.arg(metavar="X")] = 10.0
    """Seconds between decisions in the simulation."""
    plans: Switch = False
    """Also plan again at every recorded plan, with the first policy, and compare."""
    json: Output = None
    """Also write the results as JSON."""

    def run(self) -> None:
        """Read, simulate, print. UserError on any mistake."""
        from jaxsched.cli.output import RunDisplay, results, show, text
        from jaxsched.errors import UserError
        from jaxsched.evaluation.compare import compare
        from jaxsched.io.files import check_outputs
        from jaxsched.kube.cluster.record import read_recording
        from jaxsched.kube.whatif.recorded import plan_again, read_day
        from jaxsched.policies.registry import parse_all
        from jaxsched.simulation.settings import Settings as SimulationSettings

        check_outputs({"--json": self.json}, [self.recording, *self.policies])
        policies = parse_all(self.policies)
        if not 0.0 < self.interval_s < math.inf:
            raise UserError(f"--interval-s {self.interval_s:g}: should be a number of seconds above 0")
        settings = plan_settings(
            topology=self.topology,
            domain_block=self.domain_block,
            schedulers=self.schedulers,
            scheduler_name=self.scheduler_name or "jaxsched",
            gpu_resource=self.gpu_resource,
            gpu_speeds=self.gpu_speeds,
        )
        day = read_day(read_recording(self.recording), settings, self.scheduler_name)
        for line in day.summary():
            print(line)
        played = SimulationSettings(interval_s=self.interval_s)
        with RunDisplay([policy.name for policy in policies], len(day.jobs)) as display:
            comparison = compare(day.cluster, [day.jobs], policies, played, config=day.config, report=display.report)
        with results() as write:
            write(self.json, text(comparison.dumps()))
            show(comparison)
        if self.plans:
            for line in plan_again(read_recording(self.recording), settings, self.policies[0]):
                print(line)


RUN_HELP = "Watch pods, plan whole gangs, bind them; see docs/kubernetes.md."
REPLAY_HELP = "Simulate the gangs of a recording under several policies."
WHATIF_HELP = "When would the pending gangs, or those of a manifest, start? Read-only; see docs/kubernetes.md."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kube:
    """Schedule a Kubernetes cluster, ask when its gangs would start, or replay a recording of one."""

    do: tyro.conf.OmitArgPrefixes[
        Annotated[Run, tyro.conf.subcommand("run", description=RUN_HELP, prefix_name=False)]
        | Annotated[Replay, tyro.conf.subcommand("replay", description=REPLAY_HELP, prefix_name=False)]
        | Annotated[Whatif, tyro.conf.subcommand("whatif", description=WHATIF_HELP, prefix_name=False)]
    ]
    """What to do."""

    def run(self) -> None:
        """Run the subcommand."""
        self.do.run()
