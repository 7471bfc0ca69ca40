"""What became of every job as a file: CSV or Parquet."""

import csv
import importlib.util
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float, Shaped

from jaxsched.cluster.hardware import Cluster
from jaxsched.errors import UserError
from jaxsched.io.files import atomic_path, check_ending
from jaxsched.simulation.outcome import Outcome, job_columns

PARQUET = ".parquet"


def check_jobs_file(path: Path | None) -> None:
    """UserError if the name of a table of jobs does not say how it is written, or nothing is there that writes it."""
    check_ending(path, ".csv", PARQUET)
    if path is not None and path.suffix.lower() == PARQUET and importlib.util.find_spec("pyarrow") is None:
        raise UserError(
            f"{path}: Parquet needs pyarrow; install the extra, pip install 'jaxsched[tables]', or take .csv"
        )


def write_jobs(
    path: str | Path, result: Outcome, cluster: Cluster, slowed: Mapping[str, Float[np.ndarray, "J"]] | None = None
) -> None:
    """Writes `job_columns`, one line per job in order of submission: Parquet if `path` ends so, else CSV.

    In CSV unknown times are empty.
    """
    columns = job_columns(result, cluster, slowed)
    with atomic_path(path) as temporary:
        if Path(path).suffix.lower() == PARQUET:
            check_jobs_file(Path(path))
            import pyarrow
            from pyarrow import parquet

            arrays = {name: pyarrow.array(column.tolist(), from_pandas=True) for name, column in columns.items()}
            parquet.write_table(pyarrow.table(arrays), temporary)  # NaN is null there
            return
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*(_as_text(name, column) for name, column in columns.items())))


def _as_text(name: str, column: Shaped[np.ndarray, "J"]) -> list[str]:
    if name == "scheduler":
        return ["" if partition < 0 else str(partition) for partition in column]
    if name == "num_gpus":
        return [f"{gpus:g}" for gpus in column]
    if column.dtype.kind == "f":
        return ["" if np.isnan(value) else repr(round(float(value), 6)) for value in column]
    return column.tolist()
