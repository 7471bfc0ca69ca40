"""`jaxsched step-time fit|evaluate|predict`: iteration times of transformers by how they are cut up."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from jaxsched.cli.options import Output
from jaxsched.cli.output import Data

HELP = """Fit, evaluate and use a formula of the iteration time of transformers by plan.

A plan says how a model is cut up: tensor, data and pipeline degrees, batch and micro-batch. Data files have the columns
of vTrain's measurements: # GPUs, global batch, micro batch, hidden size, attention heads, # layers, sequence length,
tensor parallelism, data parallelism, pipeline parallelism, iteration time (ms). MODEL is a folder that fit wrote, or
'fitted', which comes with jaxsched: A100 servers of 8.

Examples:
  jaxsched step-time fit --data single.csv multi.csv --hardware "A100 servers of 8" --out checkpoints/step-time
  jaxsched step-time evaluate --model fitted --data unseen.csv --json errors.json
  jaxsched step-time predict --hidden 8192 --layers 48 --heads 64 --sequence 2048 --global-batch 1536 --micro-batch 2
      --tensor 8 --data 16 --pipeline 4
"""
Count = Annotated[int, tyro.conf.arg(metavar="N")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """Fit the constants of the formula to measured iterations, and write them to a folder."""

    data: Data
    """Measurements on one kind of hardware, on one server and on several."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder for the card."""
    hardware: Annotated[str, tyro.conf.arg(metavar="TEXT")] = ""
    """What was measured on, for the card."""
    server_gpus: Count = 8
    """GPUs of a server."""

    def run(self) -> None:
        """Read, fit, write. UserError on any mistake, before the fit."""
        from jaxsched.calibration.data import check_out, provenance
        from jaxsched.calibration.transformer import (
            errors,
            fit_constants,
            mean_flop_s,
            read_iterations,
            save_constants,
        )
        from jaxsched.errors import UserError
        from jaxsched.workload.transformer import CONSTANTS, WHAT, predict_iteration_s

        check_out(self.out, WHAT)
        if self.server_gpus < 1:
            raise UserError(f"--server-gpus {self.server_gpus}: should be at least 1")
        plans, seconds = read_iterations(self.data)
        constants = fit_constants(plans, seconds, self.server_gpus)
        found = errors(predict_iteration_s(constants, plans, self.server_gpus), seconds)
        files = " ".join(path.name for path in self.data)
        command = f"jaxsched step-time fit --data {files} --hardware {self.hardware!r} --out {self.out.name}"
        card = {
            "command": command + ("" if self.server_gpus == 8 else f" --server-gpus {self.server_gpus}"),
            "hardware": self.hardware,
            "server_gpus": self.server_gpus,
            "mean_flop_s": mean_flop_s(plans, seconds),
            "data": provenance(self.data),
            "rows": len(seconds),
            "errors": found,
        }
        save_constants(self.out, constants, card)
        for name, (_, meaning) in CONSTANTS.items():
            print(f"{name:15} {constants[name]:10.3g}  {meaning}")
        print(
            f"{len(seconds)} rows, mean relative error {found['mape']:.1%} on these rows themselves\nwrote {self.out}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Compare the formula, with fitted constants, with measured iterations."""

    model: Annotated[str, tyro.conf.arg(metavar="DIR")] = "fitted"
    """Folder of the constants."""
    data: Data
    """Measurements, best of all such that the fit has not seen."""
    json: Output = None
    """Also write the errors as JSON."""

    def run(self) -> None:
        """Read, compare, print, write. UserError on any mistake."""
        from jaxsched.calibration.data import files_of_the_fit
        from jaxsched.calibration.transformer import compare, read_iterations
        from jaxsched.cli.output import check_report, write_report
        from jaxsched.workload.transformer import load_constants

        check_report(self.json, *self.data)
        card = load_constants(self.model)
        plans, seconds = read_iterations(self.data)
        table = compare(card, plans, seconds)
        seen = files_of_the_fit(card.data, self.data)
        print(f"{len(seconds)} rows" + (f", the constants were fitted to {', '.join(seen)}" if seen else ""))
        print(f"{'relative error':18}{'rows':>6}{'mean':>8}{'median':>8}{'worst':>8}{'bias':>8}")
        for name, row in table.items():
            cells = "".join(f"{row[figure]:8.1%}" for figure in ("mape", "median", "worst", "bias"))
            print(f"{name:18}{row['rows']:6}{cells}")
        report = {"model": self.model, "data": list(map(str, self.data)), "fitted_to": seen, "hardware": card.hardware}
        whole = table.pop("all")
        write_report(self.json, report | whole | {"parts": table, "constants": card.constants})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict:
    """Say how long an iteration of a plan takes, and what it is spent on."""

    hidden: Count
    """Hidden size."""
    layers: Count
    """Transformer layers."""
    heads: Count
    """Attention heads."""
    sequence: Count
    """Tokens of a sequence."""
    global_batch: Count
    """Sequences of an iteration."""
    micro_batch: Count
    """Sequences of a micro-batch."""
    tensor: Count = 1
    """GPUs of a tensor group."""
    data: Count = 1
    """Replicas."""
    pipeline: Count = 1
    """Stages."""
    model: Annotated[str, tyro.conf.arg(metavar="DIR")] = "fitted"
    """Folder of the constants."""
    json: Output = None
    """Also write the seconds as JSON."""

    def run(self) -> None:
        """Read, predict, print, write. UserError on any mistake."""
        from jaxsched.cli.output import check_report, write_report
        from jaxsched.workload.transformer import iteration_parts, load_constants, make_plans

        check_report(self.json)
        plan = {name: value for name, value in vars(self).items() if name not in ("model", "json")}
        plans, card = make_plans(**plan), load_constants(self.model)
        parts = iteration_parts(card.constants, plans, card.server_gpus)
        seconds = {name: float(part[0]) for name, part in parts.items()}
        whole = sum(seconds.values())
        for name, part in seconds.items():
            print(f"{name:10} {part:10.4f} s {part / whole:6.1%}")
        print(f"{'iteration':10} {whole:10.4f} s on {int(plans.gpus[0])} GPUs ({card.hardware or 'unknown hardware'})")
        write_report(self.json, {"model": self.model, "plan": plan, "parts_s": seconds, "iteration_s": whole})


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTime:
    """Fit, evaluate and use a formula of the iteration time of transformers by plan."""

    task: Annotated[
        Annotated[Fit, tyro.conf.subcommand("fit", prefix_name=False)]
        | Annotated[Evaluate, tyro.conf.subcommand("evaluate", prefix_name=False)]
        | Annotated[Predict, tyro.conf.subcommand("predict", prefix_name=False)],
        tyro.conf.arg(name=""),
    ]
    """What to do."""

    def run(self) -> None:
        """Run the task. UserError on any mistake."""
        self.task.run()
