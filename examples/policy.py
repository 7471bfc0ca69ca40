"""Policies of one's own: `jaxsched evaluate --policies examples/policy.py:emptiest_first examples/policy.py:mine`."""

import jaxsched


def emptiest_first(key, view, job):
    """A placement rule: workers per GPU group of one partition; here the groups with most free GPUs come first."""
    return jaxsched.fill_in_order(-view.free, jaxsched.capacity(view, job), job.workers)


def short_and_narrow(state, params):
    """A queue order: of each queued job its key; the lowest comes first. Here GPUs times run time."""
    jobs, row = state.jobs, state.queue
    return jobs.workers[row] * jobs.gpus_per_worker[row] * jobs.estimate_s[row]


mine = jaxsched.policy(emptiest_first, name="mine", order=short_and_narrow, backfill=True)
