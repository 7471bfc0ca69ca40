"""`jaxsched evaluate`: policies and checkpoints on the same jobs."""

import dataclasses
from typing import Annotated

import tyro

from jaxsched.cli.options import Output, ScenarioOptions, optional

HELP = """Run every policy and checkpoint on the same jobs and compare them.

Policies are NAME[:OPTION+OPTION...] or the folder of a checkpoint. Names: first-fit, pack, load-balance, tetris,
least-interference, contention-aware, random, greedy-wait. Options: a queue order (fifo, sjf, area, las), backfill; how
blocked jobs are forwarded: forward (to idle schedulers), spread (to any that can start them), stay (never); for
greedy-wait tX (its threshold) and pX (its patience).

Examples:
  jaxsched evaluate --policies pack pack:area+backfill greedy-wait
  jaxsched evaluate --cluster leaf-spine-64 --workload philly.csv --load 0.7 --policies pack greedy-wait --json out.json
  jaxsched evaluate --policies pack greedy-wait checkpoints/quickstart --seeds 10 --markdown table.md
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(ScenarioOptions):
    """Run policies and checkpoints on the same jobs and compare them."""

    policies: Annotated[tuple[str, ...], tyro.conf.arg(metavar="A B ...")] = (
        "pack",
        "load-balance",
        "tetris",
        "least-interference",
        "contention-aware",
        "greedy-wait",
    )
    """Names of policies and folders of checkpoints."""
    seeds: Annotated[int | None, optional("N")] = None
    """Job lists, each with its own seed (default: 5 for synthetic workloads, 1 for traces)."""
    horizon_s: Annotated[float | None, optional("X")] = None
    """Cut the runs off at this simulated time (default: run until every job has finished)."""
    json: Output = None
    """Also write the results as JSON."""
    markdown: Output = None
    """Also write the table as Markdown."""
    figure: Output = None
    """Also draw the distribution of job completion times (.png, .pdf or .svg)."""

    def run(self) -> None:
        """Compare, print, write. UserError on any mistake, before the long run where it can be seen there."""
        from jaxsched.cli.output import show, write_json
        from jaxsched.cli.progress import RunDisplay
        from jaxsched.evaluation.compare import compare
        from jaxsched.evaluation.contenders import contenders
        from jaxsched.evaluation.figures import check_figure, jct_distribution
        from jaxsched.evaluation.files import check_writable, write_text
        from jaxsched.evaluation.tables import markdown

        for option in ("json", "markdown", "figure"):
            if path := getattr(self, option):
                check_writable(path, f"--{option}")
        if self.figure is not None:
            check_figure(self.figure)
        policies = contenders(self.policies)
        scenario = self.scenario(self.seeds)
        settings = self.settings(horizon_s=self.horizon_s)
        with RunDisplay([one.name for one in policies], sum(map(len, scenario.jobs))) as display:
            comparison = compare(
                scenario.cluster, scenario.jobs, policies, settings, config=scenario.config, report=display.report
            )
        show(comparison)
        write_json(comparison, self.json)
        if self.markdown is not None:
            write_text(self.markdown, markdown(comparison))
            print(f"wrote {self.markdown}")
        if self.figure is not None:
            jct_distribution(comparison, self.figure)
            print(f"wrote {self.figure}")
