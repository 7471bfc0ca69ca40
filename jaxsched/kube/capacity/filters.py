"""Which nodes a pod may go to, by upstream's rules: readiness, taints, selectors, affinity, volumes, running pods."""

from jaxsched.kube.read.objects import Node, Pod
from jaxsched.kube.read.selectors import term_holds, tolerated

UNUSABLE = ("cordoned", "not ready", "being deleted")  # reasons that lie in the node alone


def filter_reason(pod: Pod, node: Node) -> str:
    """Why the pod may not go to the node, in a few words; "" if it may. Resources are not looked at."""
    return rights_reason(pod, node) if node.usable else node.why_not


def rights_reason(pod: Pod, node: Node) -> str:
    """The same for a node that is usable, whether it is or not."""
    for taint in node.taints:
        if not tolerated(pod, taint):
            return f"taint {taint.get('key', '')}"
    if any(node.labels.get(key) != value for key, value in pod.selector.items()):
        return "node selector"
    if pod.affinity and not any(term_holds(term, node) for term in pod.affinity):
        return "node affinity"
    if any(not any(term_holds(term, node) for term in terms) for terms in pod.volume_affinity):
        return "volume node affinity"
    if any(node.labels.get(key) == value for key, value in pod.closed_domains):
        return "anti-affinity of running pods"
    return ""
