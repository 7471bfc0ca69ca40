"""`jaxsched step-time`: iteration times of transformers by plan; `jaxsched placement`: step times by placement."""

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxsched.cli.options import Output, Tasks, optional
from jaxsched.cli.output import Data

if TYPE_CHECKING:
    from jaxsched.calibration.fitting import Errors
    from jaxsched.calibration.step_time import StepTimes


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
class FitPlans:
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
        from jaxsched.calibration.transformer import errors, fit_constants, mean_flop_s, read_iterations, save_constants
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
class EvaluatePlans:
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
class PredictPlan:
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
        from jaxsched.errors import UserError
        from jaxsched.workload.transformer import iteration_parts, load_constants, make_plans

        check_report(self.json)
        plan = {name: value for name, value in vars(self).items() if name not in ("model", "json")}
        plans, card = make_plans(**plan), load_constants(self.model)
        parts = iteration_parts(card.constants, plans, card.server_gpus)
        seconds = {name: float(part[0]) for name, part in parts.items()}
        if not math.isfinite(whole := sum(seconds.values())):
            raise UserError("its iteration is longer than numbers can say; give sizes of a model and batches that are")
        for name, part in seconds.items():
            print(f"{name:10} {part:10.4f} s {part / whole:6.1%}")
        print(f"{'iteration':10} {whole:10.4f} s on {int(plans.gpus[0])} GPUs ({card.hardware or 'unknown hardware'})")
        write_report(self.json, {"model": self.model, "plan": plan, "parts_s": seconds, "iteration_s": whole})


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTime(Tasks):
    """Fit, evaluate and use a formula of the iteration time of transformers by plan."""

    task: Annotated[
        Annotated[FitPlans, tyro.conf.subcommand("fit", prefix_name=False)]
        | Annotated[EvaluatePlans, tyro.conf.subcommand("evaluate", prefix_name=False)]
        | Annotated[PredictPlan, tyro.conf.subcommand("predict", prefix_name=False)],
        tyro.conf.arg(name=""),
    ]
    """What to do."""


PLACEMENT_HELP = """Fit and evaluate a model of the step time by placement.

Data files have the columns model,placement,local_batch_size,step_time_s,sync_time_s (placement "1143": four nodes with
1, 1, 4 and 3 GPUs) or model,nodes,gpus,local_batch_size,step_time_s,sync_time_s. MODEL is a folder that fit wrote, or
'fitted', which comes with jaxsched.

Examples:
  jaxsched placement fit --data pollux_placements.csv pollux_scalability.csv --out checkpoints/placement
  jaxsched placement evaluate --model fitted --data unseen.csv --json errors.json
  jaxsched placement validate --data pollux_placements.csv pollux_scalability.csv
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitPlacement:
    """Fit the model to measurements, and write it to a folder."""

    data: Data
    """Measurements."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder for weights and card."""
    max_nodes: Annotated[int | None, optional("N")] = None
    """Leave placements on more nodes out (default: take all)."""

    def run(self) -> None:
        """Read, fit, write. UserError on any mistake, before the fit."""
        from jaxsched.calibration.data import check_out, provenance
        from jaxsched.calibration.step_time import WHAT, fit_step_times, mean_step_s, save_model
        from jaxsched.errors import UserError

        check_out(self.out, WHAT)
        if self.max_nodes is not None and self.max_nodes < 1:
            raise UserError(f"--max-nodes {self.max_nodes}: should be at least 1")
        times = _kept(_read_times(self.data), most=self.max_nodes)
        files = " ".join(path.name for path in self.data)
        limit = "" if self.max_nodes is None else f" --max-nodes {self.max_nodes}"
        command = f"jaxsched placement fit --data {files} --out {self.out.name}{limit}"
        card = {"command": command, "data": provenance(self.data), "rows": len(times.step_s)}
        save_model(self.out, fit_step_times(times), mean_step_s(times), card)
        print(f"{len(times.step_s)} rows\nwrote {self.out}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluatePlacement:
    """Compare a fitted model, and references fitted to the same rows, with measurements."""

    model: Annotated[str, tyro.conf.arg(metavar="DIR")] = "fitted"
    """Folder of the model."""
    data: Data
    """Measurements, best of all such that the model has not seen."""
    min_nodes: Annotated[int | None, optional("N")] = None
    """Leave placements on fewer nodes out (default: take all)."""
    json: Output = None
    """Also write the errors as JSON."""

    def run(self) -> None:
        """Read, compare, print, write. UserError on any mistake."""
        from jaxsched.calibration.data import files_of_the_fit
        from jaxsched.calibration.fitting import MODEL
        from jaxsched.calibration.step_time import compare, load_model
        from jaxsched.cli.output import check_report, write_report

        check_report(self.json, *self.data)
        times = _kept(_read_times(self.data), least=self.min_nodes)
        fitted, means, card = load_model(self.model)
        table = compare(fitted, means, times)
        seen = files_of_the_fit(card["data"], self.data)
        print(f"{len(times.step_s)} rows" + (f", the model was fitted to {', '.join(seen)}" if seen else ""))
        _show(table)
        report = {"model": self.model, "data": list(map(str, self.data)), "fitted_to": seen, "rows": len(times.step_s)}
        write_report(self.json, report | table.pop(MODEL) | {"references": table})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValidatePlacement:
    """Fit anew without some rows and predict those: folds over placements, and few nodes for many."""

    data: Data
    """Measurements."""
    folds: Annotated[int, tyro.conf.arg(metavar="N")] = 5
    """Parts of the placements, each left out in turn."""
    max_nodes: Annotated[int, tyro.conf.arg(metavar="N")] = 2
    """Also fit on placements of so many nodes at most, and predict all others."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the parts."""
    json: Output = None
    """Also write the errors as JSON."""

    def run(self) -> None:
        """Read, fit, print, write. UserError on any mistake."""
        from jaxsched.calibration.step_time import cross_validate, extrapolate
        from jaxsched.cli.output import check_report, write_report
        from jaxsched.errors import UserError

        check_report(self.json, *self.data)
        times = _read_times(self.data)
        placements = len(set(times.placement))
        if placements < 2:
            raise UserError("--data: has too few placements for folds, should have at least 2")
        if not 2 <= self.folds <= placements:
            raise UserError(f"--folds {self.folds}: should be 2 to {placements}, the number of placements")
        near = times.spread[0] <= self.max_nodes
        if near.all() or not near.any():
            raise UserError(f"--max-nodes {self.max_nodes}: should leave rows on both sides")
        folded = cross_validate(times, self.folds, self.seed)
        print(f"{self.folds} folds over {placements} placements, {len(times.step_s)} rows")
        _show(folded)
        far = extrapolate(times, self.max_nodes)
        print(f"\nfitted to at most {self.max_nodes} nodes, {(~near).sum()} rows on more")
        _show(far)
        report = {"data": list(map(str, self.data)), "rows": len(times.step_s), "folds": self.folds, "seed": self.seed}
        write_report(self.json, report | {"cv": folded, "max_nodes": self.max_nodes, "more_nodes": far})


def _read_times(paths: tuple[Path, ...]) -> "StepTimes":
    from jaxsched.calibration.step_time import read_step_times

    return read_step_times(paths)


def _kept(times: "StepTimes", least: int | None = None, most: int | None = None) -> "StepTimes":
    """The rows on `least` to `most` nodes; UserError if there are none."""
    from jaxsched.errors import UserError

    nodes = times.spread[0]
    kept = (nodes >= (least or 1)) & (nodes <= (most or nodes.max()))
    if not kept.any():
        raise UserError(f"no row is left: the data have placements on {nodes.min()} to {nodes.max()} nodes")
    return times.pick(kept)


def _show(table: "dict[str, Errors]") -> None:
    """Relative errors by model, one line for the fitted model and each reference."""
    groups = list(next(iter(table.values()))["median"])
    print(f"{'median error':14}" + "".join(f"{group:>13}" for group in groups) + f"{'mean, all':>12}")
    for name, row in table.items():
        print(f"{name:14}" + "".join(f"{row['median'][g]:13.1%}" for g in groups) + f"{row['mape']['all']:12.1%}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement(Tasks):
    """Fit and evaluate a model of the step time by placement."""

    task: Annotated[
        Annotated[FitPlacement, tyro.conf.subcommand("fit", prefix_name=False)]
        | Annotated[EvaluatePlacement, tyro.conf.subcommand("evaluate", prefix_name=False)]
        | Annotated[ValidatePlacement, tyro.conf.subcommand("validate", prefix_name=False)],
        tyro.conf.arg(name=""),
    ]
    """What to do."""
