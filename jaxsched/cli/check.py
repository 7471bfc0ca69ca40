"""`jaxsched check`: whether files can be read, and as what, without running anything."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxsched.cli.options import optional

HELP = """Say what files and folders hold, or what is wrong with them.

Known are traces, node lists and host maps, measurements (.csv, .json), cluster files, files of models, training
configurations and sweeps (.yaml), recordings and logs of runs (.jsonl), and the folders of checkpoints, fitted models
and runs. The exit code is 2 if one of them cannot be read.

Examples:
  jaxsched check trace.csv mine.yaml checkpoints/quickstart runs/mine
  jaxsched check --models models.yaml trace.csv
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """Say what files and folders hold, or what is wrong with them."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE ...")]
    """Files and folders."""
    models: Annotated[str | None, optional("FILE")] = None
    """Models of your own that traces name (as of `jaxsched evaluate`)."""

    def run(self) -> None:
        """One line for each. UserError with the number of bad ones after all have been looked at."""
        import sys

        from jaxsched.errors import UserError

        if not self.files:
            raise UserError("check: name at least one file or folder")
        bad: list[str] = []
        for path in self.files:
            try:
                print(f"{path}: {what_is(path, self.models)}")
            except UserError as error:
                bad.append(str(error))
        for message in bad[:-1]:
            print(f"jaxsched: error: {' '.join(message.split())}", file=sys.stderr)
        if bad:
            raise UserError(bad[-1])


def what_is(path: Path, models: str | None = None) -> str:
    """What a file or folder holds, in a few words. UserError if it cannot be read as what it seems to be.

    Args: `models`: a file of models that traces may name.
    """
    from jaxsched.errors import UserError

    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    readers: dict[str, Callable[[Path], str]] = {
        ".csv": functools.partial(_csv, models=models),
        ".yaml": _yaml,
        ".yml": _yaml,
        ".jsonl": _lines,
        ".json": _json,
    }
    if path.suffix.lower() not in readers:
        raise UserError(f"{path}: is of no known kind, should end in {', '.join(readers)}, or be a folder")
    return readers[path.suffix.lower()](path)


def _folder(path: Path) -> str:
    from jaxsched.calibration import step_time
    from jaxsched.calibration.interference import files as interference
    from jaxsched.errors import UserError
    from jaxsched.io.cards import CARD_FILE
    from jaxsched.io.json_file import read_json
    from jaxsched.io.json_lines import read_rows
    from jaxsched.learning.evolved.state import STATE_FILE
    from jaxsched.learning.evolved.state import saved_config as saved_evolved
    from jaxsched.learning.loop import METRICS_FILE, STATE_FOLDER
    from jaxsched.learning.state import saved_config
    from jaxsched.policies import evolved
    from jaxsched.policies.checkpoint import WHAT, load_policy
    from jaxsched.sweeps.plan import ROWS_FILE

    if (path / STATE_FILE).is_file():
        run, found = saved_evolved(path), read_rows(path / METRICS_FILE)
        return f"a run that learns {run.learn} from {run.workload}, {len(found)} of {run.generations} generations"
    if (path / ROWS_FILE).is_file():  # before the state, which runs that were trained at once leave there
        return f"a sweep, {len(read_rows(path / ROWS_FILE)):,} finished points"
    if (path / STATE_FOLDER).is_dir():
        config = saved_config(path / STATE_FOLDER)
        return f"a training run on {config.env.cluster}, {len(read_rows(path / METRICS_FILE))} of {config.ppo.chunks}"
    if not (path / CARD_FILE).is_file():
        raise UserError(f"{path}: is a folder without {CARD_FILE} and without {STATE_FOLDER}, so nothing of ours")
    card: Any = read_json(path / CARD_FILE)
    what = card.get("what") if isinstance(card, dict) else None
    readers: dict[Any, Callable[[Path], object]] = {
        WHAT: load_policy,
        **{what: functools.partial(evolved.load_policy, what=what) for what in evolved.KINDS},
        interference.WHAT: interference.load_model,
        step_time.WHAT: step_time.load_model,
    }
    if not isinstance(what, str) or what not in readers:
        raise UserError(f"{path / CARD_FILE}: what should be one of {', '.join(map(str, readers))}")
    readers[what](path)
    named = {WHAT: "checkpoint", evolved.LEVELS: "table of levels, a policy", evolved.SEEKING: "policy that seeks"}
    return f"a {named.get(what, f'fitted model of {what}')}"


def _csv(path: Path, models: str | None) -> str:
    from jaxsched.calibration.interference.measurements import GPU_COLUMNS, NETWORK_COLUMNS, read_measurements
    from jaxsched.calibration.step_time import FORMATS as STEP_TIMES
    from jaxsched.calibration.step_time import read_step_times
    from jaxsched.cluster.inventory import HOST_COLUMNS, NODE_COLUMNS, read_csv
    from jaxsched.cluster.servers import GPU_SPEEDS
    from jaxsched.io.csv_file import read_table
    from jaxsched.simulation.job_table import JOB_COLUMNS
    from jaxsched.workload.catalogue import get_catalogue
    from jaxsched.workload.traces import detect_format, read_trace

    table = read_table(path)
    header = sorted(table.header)
    if header in (sorted(GPU_COLUMNS), sorted(NETWORK_COLUMNS)):
        return f"{read_measurements([path])[0].rows:,} measurements of interference"
    if header in [sorted(form.columns) for form in STEP_TIMES]:
        return f"{len(read_step_times([path]).step_s):,} measured step times"
    if set(table.header) >= set(HOST_COLUMNS) or set(table.header) >= set(NODE_COLUMNS):
        return f"a cluster of {len(read_csv(path).servers):,} servers with GPUs"
    if set(table.header) >= set(JOB_COLUMNS):
        return f"what became of {len(table.rows):,} jobs"
    jobs, skipped = read_trace(path, catalogue=get_catalogue(models))
    left = "".join(f", {count:,} rows left out ({reason})" for reason, count in skipped.items())
    types = sorted(set(jobs.gpu_type.tolist()) - {"", *GPU_SPEEDS})
    if types:
        left += f"; GPU types that only a cluster's gpu_speeds can tell: {', '.join(types)}"
    return f"a trace, format {detect_format(table).name}, of {len(jobs):,} job{'s' * (len(jobs) > 1)}{left}"


def _yaml(path: Path) -> str:
    from jaxsched.cluster.cluster_file import read_cluster_file
    from jaxsched.errors import UserError
    from jaxsched.io.yaml_file import read_yaml
    from jaxsched.learning.config import load_config
    from jaxsched.sweeps.file import load_sweep
    from jaxsched.workload.catalogue import get_catalogue

    content = read_yaml(path, "configs/quickstart.yaml")
    if content is None:
        raise UserError(f"{path}: is empty; see examples/cluster.yaml or configs/quickstart.yaml for examples")
    keys = set(content) if isinstance(content, dict) else set()
    if keys == {"models"}:
        get_catalogue(path)
        return f"{len(content['models']):,} model{'s' * (len(content['models']) > 1)} of jobs"
    if keys & {"servers", "topology", "gpu_speeds"}:
        return f"a cluster of {len(read_cluster_file(path).servers):,} servers"
    if keys & {"axes", "variants", "base", "out"}:
        return f"a sweep of {len(load_sweep(path).points):,} points"
    return f"a training configuration for {load_config(path).env.cluster}"


def _json(path: Path) -> str:
    from jaxsched.calibration.interference.measurements import read_measurements
    from jaxsched.evaluation.saved import read_result
    from jaxsched.io.json_file import read_json

    content = read_json(path)
    if isinstance(content, dict) and {"policies", "config", "versions"} <= set(content):
        return f"a comparison of {len(read_result(path).policies):,} policies"
    return f"{read_measurements([path])[0].rows:,} measurements of interference"


def _lines(path: Path) -> str:
    from jaxsched.io.inputs import read_text
    from jaxsched.io.json_lines import MOST_BYTES, read_rows
    from jaxsched.kube.cluster.record import read_recording

    first = read_text(path, MOST_BYTES)[:65536].split("\n", 1)[0]
    if '"baselines_jct_s"' in first:
        return f"{len(read_rows(path)):,} rows of a sweep"
    if '"jct_by_list_s"' in first:
        return f"{len(read_rows(path)):,} measurements of a sweep's baselines"
    if '"chunk"' in first:
        return f"a training run's log of {len(read_rows(path)):,} rows"
    return f"a recording of {sum(1 for _ in read_recording(path)):,} lines"
