"""What the compiled event loop has: what a run must not ask for if it is to be played by it. Needs no Numba."""

import functools

from jaxsched.dynamics import interference
from jaxsched.env.state import EnvConfig
from jaxsched.policies.registry import Spec

POLICIES = ("first-fit", "pack", "load-balance", "tetris", "least-interference", "contention-aware", "greedy-wait")
MODELS = (interference.none, interference.analytic, interference.fitted)


def why_not(config: EnvConfig, spec: Spec | None) -> str | None:
    """What is missing for a run of a hand-written policy (None: of any other); None if nothing is."""
    if spec is None or spec.name not in POLICIES:
        return f"it has the policies {', '.join(POLICIES)} only"
    if config.shared_gpus:
        return "it has no jobs that share a GPU"
    if config.interference not in MODELS:
        return "it has no interference models but the project's own"
    return no_numba()


@functools.cache
def no_numba() -> str | None:
    """Why Numba cannot be used; None if it can."""
    try:
        import jaxsched.simulation.engines.compiled.jit  # noqa: F401
    except ImportError as error:
        return f"it needs Numba, `pip install 'jaxsched[compiled]'` ({error})"
    return None
