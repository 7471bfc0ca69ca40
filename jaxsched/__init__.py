"""jaxsched: GPU cluster scheduling as a pure JAX function.

Names: `ClusterEnv`, `Comparison`, `Discipline`, `Policy`, `PolicySpec`, `Settings`, `UserError`, `WorkloadOptions`,
`capacity`, `compare`, `compare_worlds`, `fill_in_order`, `get_cluster`, `get_workload`, `make`, `make_job_list` and
`policy`. Each is found when it is first used, so that `import jaxsched` opens nothing and answers at once;
`help(jaxsched.compare)` explains one.
"""

import importlib

__version__ = "0.1.0"

_HOMES = {
    "ClusterEnv": "jaxsched.env.environment",
    "Comparison": "jaxsched.evaluation.tables",
    "Discipline": "jaxsched.env.queues",
    "Policy": "jaxsched.policies.policy",
    "PolicySpec": "jaxsched.policies.spec",
    "Settings": "jaxsched.simulation.settings",
    "UserError": "jaxsched.errors",
    "WorkloadOptions": "jaxsched.workload.load",
    "capacity": "jaxsched.policies.rules",
    "compare": "jaxsched.evaluation.compare",
    "compare_worlds": "jaxsched.evaluation.worlds",
    "fill_in_order": "jaxsched.policies.filling",
    "get_cluster": "jaxsched.cluster.presets",
    "get_workload": "jaxsched.workload.load",
    "make": "jaxsched.adapters.make",
    "make_job_list": "jaxsched.workload.jobs",
    "policy": "jaxsched.policies.registry",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxsched' has no attribute {name!r}; it has {', '.join(_HOMES)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *_HOMES]
