"""Which nodes a pod may go to, by upstream's rules: readiness, taints, selectors, affinity, volumes, running pods.

Also what other pods have a claim to: domains that their required anti-affinity closes, and nodes that they are
nominated for. Required terms of our own pending pods are refused (`read.objects`).
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxsched.kube.read.objects import DONE_PHASES, Node, Pod
from jaxsched.kube.read.selectors import term_matches_node, term_matches_pod, tolerates

UNUSABLE = ("cordoned", "not ready", "being deleted")  # reasons that lie in the node alone


def filter_reason(pod: Pod, node: Node) -> str:
    """Why the pod may not go to the node, in a few words; "" if it may. Resources are not looked at."""
    return rights_reason(pod, node) if node.usable else node.why_not


def rights_reason(pod: Pod, node: Node) -> str:
    """The same for a node that is usable, whether it is or not."""
    for taint in node.taints:
        if not tolerates(pod, taint):
            return f"taint {taint.get('key', '')}"
    if any(node.labels.get(key) != value for key, value in pod.selector.items()):
        return "node selector"
    if pod.affinity and not any(term_matches_node(term, node) for term in pod.affinity):
        return "node affinity"
    if any(not any(term_matches_node(term, node) for term in terms) for terms in pod.volume_affinity):
        return "volume node affinity"
    if any(node.labels.get(key) == value for key, value in pod.closed_domains):
        return "anti-affinity of running pods"
    return ""


Closed = tuple[str, str]  # label and value of a topology domain


def count_nominations(pods: Iterable[Pod], scheduler: str) -> tuple[Pod, ...]:
    """Other schedulers' pods for which room is being made count as if they ran there."""

    def settled(pod: Pod) -> Pod:
        waits = pod.nominated and not pod.node and not pod.terminating and pod.scheduler != scheduler
        return dataclasses.replace(pod, node=pod.nominated) if waits else pod

    return tuple(map(settled, pods))


def close_domains(pods: Sequence[Pod], nodes: Iterable[Node], scheduler: str) -> tuple[Pod, ...]:
    """Our pending pods, each with the domains that required anti-affinity of placed pods closes to it."""
    by_term = _closing_terms(pods, {node.name: node for node in nodes})
    if not by_term:
        return tuple(pods)

    def informed(pod: Pod) -> Pod:
        if pod.node or pod.scheduler != scheduler:
            return pod
        closed: set[Closed] = set()
        for namespace, term, domains in by_term:
            if term_matches_pod(term, namespace, pod):
                closed |= domains
        return dataclasses.replace(pod, closed_domains=tuple(sorted(closed)))

    return tuple(map(informed, pods))


def _closing_terms(pods: Iterable[Pod], nodes: Mapping[str, Node]) -> list[tuple[str, Mapping[str, Any], set[Closed]]]:
    """Each different term, the namespace of the pods that have it, and the domains that these are in."""
    found: dict[tuple[str, str], tuple[str, Mapping[str, Any], set[Closed]]] = {}
    for pod in pods:
        if pod.anti_affinity and pod.node in nodes and pod.phase not in DONE_PHASES:
            labels = nodes[pod.node].labels
            for term in pod.anti_affinity:
                key = str(term.get("topologyKey") or "")
                if key in labels:
                    entry = found.setdefault((pod.namespace, str(term)), (pod.namespace, term, set()))
                    entry[2].add((key, labels[key]))
    return list(found.values())
