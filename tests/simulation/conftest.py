"""One small comparison that several test files look at."""

from tests.support.comparison import cluster, comparison, job_lists, progress  # noqa: F401
