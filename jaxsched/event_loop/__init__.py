"""The event loop of docs/semantics.md, job by job, for hand-written policies: as machine code or as plain Python.

It gives what the JAX environment gives, but only as a whole run: nothing in it can be vmapped, differentiated or
learned. Where the environment computes whole arrays, this follows the few resources that a job touches. What is here is
for others; all modules are private.

- `Run`: a job list from an empty cluster on; `SearchedRun`, under a policy that searches.
- `DecisionRounds`: one boundary from a given state, for a live cluster.
- `Futures`: roll-outs from a given state.
- `why_not`: what it cannot play.
"""

from jaxsched.event_loop.coverage import (
    POLICIES,
    describe_compiling,
    is_simple,
    numba_missing,
    why_not,
    why_not_whole_run,
)
from jaxsched.event_loop.rounds import DecisionRounds, Futures, Played, Round, RunningJob
from jaxsched.event_loop.run import Run
from jaxsched.event_loop.search import SearchedRun

__all__ = [
    "POLICIES",
    "DecisionRounds",
    "Futures",
    "Played",
    "Round",
    "Run",
    "RunningJob",
    "SearchedRun",
    "describe_compiling",
    "is_simple",
    "numba_missing",
    "why_not",
    "why_not_whole_run",
]
