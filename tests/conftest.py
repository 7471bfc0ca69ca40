"""Shared by all test rooms: hypothesis profiles. Being here also puts `tests/` on the path, for `import oracle`."""

from hypothesis import HealthCheck, settings

# Examples come from a fixed seed, so that a run tells the same story everywhere; `--hypothesis-profile=explore` roams.
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True, suppress_health_check=_QUIET)
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=_QUIET)
settings.load_profile("fixed")
