"""`jaxsched simulate`: one policy, and what became of every job."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxsched.cli.options import Output, ScenarioOptions, file_of, optional

HELP = """Run one policy and write what became of every job.

--jobs-out writes a line per job:
  given_submit_s    when it was submitted, as in the input
  submit_s          the same, counted from the first job and at the load that --load asks for
  start_s           when it started first (empty: never), and finish_s
  gpu_type          what its GPUs are; types are joined by +
  scheduler         where it started; forwards: how often it was handed on before
  jct_s             = queueing_s + ideal_s (run time alone, on the best places) + slowed_s
  slowed_s          = placement_s (spread out, slower GPUs) + sharing_s (jobs on the same GPU) + server_s (jobs in the
                    same servers) + network_s (jobs on the same network) + restarts_s + lost_s (work done twice)
  slowdown          run time over ideal_s; below 1 on faster GPUs than those that run times are on
  placement         the last one: server:group:gpus joined by +; servers are numbered as in the cluster's inventory

The columns tenant and user are there where jobs have different ones, by the names of the input; stops, failures,
restarts_s and lost_s where jobs may be stopped (--preemption on, --failures, --outages).

Examples:
  jaxsched simulate --policy greedy-wait --jobs-out jobs.csv
  jaxsched simulate --workload examples/trace.csv --policy pack --timeline trace.json   # open at ui.perfetto.dev
  jaxsched simulate --policy pack:sjf+backfill --cluster leaf-spine-64 --workload philly.csv --load 0.7
  jaxsched simulate --profiles pollux/profiles --workload workload-1.csv --cluster t4.yaml --interference none \\
    --policy pollux --jobs-out jobs.csv   # jobs that adapt: tiresias, optimus, equal, afs, marginal, pollux, ...
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulate(ScenarioOptions):
    """Run one policy and write what became of every job."""

    policy: Annotated[str, tyro.conf.arg(metavar="NAME")] = "greedy-wait"
    """A policy or the folder of a checkpoint; see `jaxsched evaluate --help`."""
    profiles: Annotated[Path | None, optional("DIR")] = None
    """Jobs adapt their GPUs and batches, by the measured profiles of DIR (see docs/howto/adaptive.md)."""
    jobs_out: Output = None
    """Write one line per job (.csv, or .parquet)."""
    timeline: Output = None
    """Write who held which GPU when, for Perfetto (.json)."""
    json: Output = None
    """Also write the results as JSON."""

    def run(self) -> None:
        """Simulate, print, write. UserError on any mistake, before the long run where it can be seen there."""
        from jaxsched.cli.output import RunDisplay, results, show, still_at, text
        from jaxsched.evaluation.compare import compare
        from jaxsched.evaluation.parts import SLOWED, parts_of
        from jaxsched.evaluation.timelines import write_trace
        from jaxsched.io.files import check_ending, check_outputs
        from jaxsched.machine import compute_on_one_thread
        from jaxsched.policies.registry import parse_all
        from jaxsched.simulation.outcome import check_jobs_file, write_jobs
        from jaxsched.simulation.settings import params_for

        self.choose_device()
        compute_on_one_thread()
        if self.profiles is not None:
            return play_adaptive(self, self.profiles, [self.policy], self.jobs_out)
        files = {"--jobs-out": self.jobs_out, "--timeline": self.timeline, "--json": self.json}
        check_outputs(files, [*self.inputs, file_of(self.policy)])
        check_jobs_file(self.jobs_out)
        check_ending(self.timeline, ".json", option="--timeline")
        policies = parse_all([self.policy])
        scenario = self.scenario(1)
        placed = self.jobs_out is not None or self.timeline is not None
        settings = self.settings(record_placements=placed)
        with RunDisplay([self.policy], len(scenario.jobs[0])) as display:
            comparison = compare(
                scenario.cluster, scenario.jobs, policies, settings, config=scenario.config, report=display.report
            )
        jobs, cluster = comparison.rows[0].outcomes[0], scenario.cluster
        params = functools.partial(params_for, cluster, jobs.jobs, settings)
        slowed: dict[str, Any] = {}
        if self.jobs_out is not None:
            with still_at("what slowed jobs"):
                parts = parts_of(jobs, cluster, params())
            slowed = {name: getattr(parts, name) for name in SLOWED}
        with results() as write:
            write(self.jobs_out, lambda path: write_jobs(path, jobs, cluster, slowed))
            with still_at("--timeline"):
                write(self.timeline, lambda path: write_trace(path, jobs, cluster, params()))
            write(self.json, text(comparison.dumps()))
            show(comparison)


def play_adaptive(command: Any, profiles: Path, policies: Sequence[str], jobs_out: Path | None) -> None:
    """Jobs with profiles: play, print, write. UserError on any mistake."""
    from jaxsched.adaptive.compare import as_table, play_files, write_jobs
    from jaxsched.cli.output import results, text
    from jaxsched.io.files import check_ending, check_outputs
    from jaxsched.io.json_file import to_json
    from jaxsched.machine import compute_on_one_thread

    compute_on_one_thread()
    check_outputs({"--jobs-out": jobs_out, "--json": command.json}, [*command.inputs, *map(file_of, policies)])
    check_ending(jobs_out, ".csv", option="--jobs-out")
    played = play_files(command, profiles, policies)
    with results() as write:
        write(jobs_out, text(write_jobs(played[0].result)))
        write(command.json, text(to_json({one.policy: one.figures() for one in played}, indent=2)))
        print(as_table(played))
