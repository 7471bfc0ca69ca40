from jaxsched.adapters.make import make as make
from jaxsched.cluster.presets import get_cluster as get_cluster
from jaxsched.env.environment import ClusterEnv as ClusterEnv
from jaxsched.env.queues import Discipline as Discipline
from jaxsched.errors import UserError as UserError
from jaxsched.evaluation.compare import compare as compare
from jaxsched.evaluation.tables import Comparison as Comparison
from jaxsched.evaluation.worlds import compare_worlds as compare_worlds
from jaxsched.policies.filling import fill_in_order as fill_in_order
from jaxsched.policies.policy import Policy as Policy
from jaxsched.policies.registry import policy as policy
from jaxsched.policies.rules import capacity as capacity
from jaxsched.policies.spec import PolicySpec as PolicySpec
from jaxsched.simulation.settings import Settings as Settings
from jaxsched.workload.jobs import make_job_list as make_job_list
from jaxsched.workload.load import WorkloadOptions as WorkloadOptions
from jaxsched.workload.load import get_workload as get_workload

__version__: str
