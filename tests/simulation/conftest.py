"""The small comparison of the evaluation's tests, whose runs are looked at here."""

from tests.evaluation.conftest import cluster, comparison, job_lists, progress  # noqa: F401
