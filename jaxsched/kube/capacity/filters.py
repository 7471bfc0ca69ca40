"""Which nodes a pod may go to, by upstream's rules, and how much it would like each of them.

It may go: readiness, taints, selectors, affinity, volumes, running pods. Also what other pods have a claim to: domains
that their required anti-affinity closes, and nodes that they are nominated for. Required terms of our own pending pods
are refused (`read.objects`).

It would like: preferred affinity, topology spread, taints with PreferNoSchedule. Scores and weights are those of the
default scheduler (its plugins NodeAffinity, InterPodAffinity, PodTopologySpread and TaintToleration): each kind goes
from 0 to 100 over the nodes that the pod may use. `A` nodes.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsched.kube.capacity.ledger import Ledger
from jaxsched.kube.read.objects import (
    DONE_PHASES,
    Node,
    Pod,
    mapping,
    selector_matches,
    term_matches_node,
    term_matches_pod,
    tolerates,
)

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


TAINTS, NODE_AFFINITY, POD_AFFINITY, SPREAD = 3.0, 2.0, 2.0, 2.0  # weights of kube-scheduler's default plugins
BEST = 100.0


class Preferences:
    """Scores of one plan. Pods that the ledger has, also those of this plan, are the ones that affinity is about."""

    def __init__(self, nodes: Sequence[Node], ledger: Ledger) -> None:
        self.nodes, self.ledger = nodes, ledger
        self._some_taints = any(node.soft_taints for node in nodes)
        self._static: dict[str, np.ndarray] = {}
        self._domains: dict[str, np.ndarray] = {}
        self._matches: dict[str, dict[str, bool]] = {}  # selector -> pod uid -> whether it is about the pod

    def wanted(self, pods: Iterable[Pod]) -> bool:
        """Some of the pods may like one node better than another."""
        return any(self._some_taints or pod.preferred_nodes or pod.preferred_pods or pod.spread for pod in pods)

    def of_all(self, pods: Sequence[Pod], allowed: Bool[np.ndarray, "A"]) -> Float[np.ndarray, "A"]:
        """The mean score over pods that start together."""
        alike: dict[str, list[Pod]] = {}
        for pod in pods:
            wishes = (pod.preferred_nodes, pod.preferred_pods, pod.spread, pod.tolerations, sorted(pod.labels.items()))
            alike.setdefault(str(wishes), []).append(pod)
        total = np.zeros(len(self.nodes))
        for some in alike.values():
            total += len(some) * self.scores(some[0], allowed)
        return total / max(len(pods), 1)

    def scores(self, pod: Pod, allowed: Bool[np.ndarray, "A"]) -> Float[np.ndarray, "A"]:
        """From 0 to 900, higher is better; what is not `allowed` has no part in the scale."""
        total = np.zeros(len(self.nodes))
        if not self.wanted([pod]) or not allowed.any():
            return total
        if self._some_taints:
            count = lambda node: sum(not tolerates(pod, taint) for taint in node.soft_taints)
            taints = self._fixed("taints", pod.tolerations, count)
            total += TAINTS * (BEST - _up_to_best(taints, allowed))
        if pod.preferred_nodes:
            liked = self._fixed("nodes", pod.preferred_nodes, lambda node: _liked(pod, node))
            total += NODE_AFFINITY * _up_to_best(liked, allowed)
        if pod.preferred_pods:
            near = np.sum([weight * self._count(term, pod) for weight, term in pod.preferred_pods], axis=0)
            total += POD_AFFINITY * _from_worst_to_best(near, allowed)
        if pod.spread:
            total += SPREAD * self._spread(pod, allowed)
        return total

    def _fixed(self, kind: str, key: object, score: Callable[[Node], float]) -> Float[np.ndarray, "A"]:
        """What depends on nodes alone is worked out once for all pods that say the same."""
        key = f"{kind} {key}"
        if key not in self._static:
            self._static[key] = np.array([score(node) for node in self.nodes], float)
        return self._static[key]

    def _in_domains(self, label: str) -> Int[np.ndarray, "A"]:
        """The number of each node's domain, -1 where it has no such label."""
        if label not in self._domains:
            numbers: dict[str, int] = {}
            values = [node.labels.get(label) for node in self.nodes]
            found = [-1 if value is None else numbers.setdefault(value, len(numbers)) for value in values]
            self._domains[label] = np.array(found, int)
        return self._domains[label]

    def _count(self, term: Mapping[str, Any], pod: Pod) -> Float[np.ndarray, "A"]:
        """Pods in each node's domain that a term of pod affinity is about."""
        label = str(term.get("topologyKey") or "")
        own = _own_labels(term, pod)
        key = f"term {term} {pod.namespace} {own}"
        return self._by_domain(
            label, key, lambda other: term_matches_pod(term, pod.namespace, other) and _has(other, own)
        )

    def _by_domain(self, label: str, key: str, matches: Callable[[Pod], bool]) -> Float[np.ndarray, "A"]:
        known = self._matches.setdefault(key, {})
        domain = self._in_domains(label)
        counts = np.zeros(domain.max(initial=0) + 1)
        for uid, other in self.ledger.pods.items():
            if uid not in known:
                known[uid] = not other.terminating and matches(other)
            row = self.ledger.reserved[uid][0]
            if known[uid] and domain[row] >= 0:
                counts[domain[row]] += 1
        return np.where(domain >= 0, counts[domain], 0.0)

    def _alike(self, label: str, constraint: Mapping[str, Any], own: tuple, namespace: str) -> Float[np.ndarray, "A"]:
        """Pods in each node's domain that a constraint of topology spread counts; without a selector none."""
        selector = mapping(constraint, "labelSelector")
        if not isinstance(constraint.get("labelSelector"), Mapping):
            return np.zeros(len(self.nodes))

        def matches(other: Pod) -> bool:
            return other.namespace == namespace and selector_matches(selector, other.labels) and _has(other, own)

        return self._by_domain(label, f"spread {selector} {own} {namespace}", matches)

    def _spread(self, pod: Pod, allowed: Bool[np.ndarray, "A"]) -> Float[np.ndarray, "A"]:
        """Fewer pods that match in a node's domain are better; a node that lacks one of the labels is worst."""
        crowd, complete = np.zeros(len(self.nodes)), np.ones(len(self.nodes), bool)
        for one in pod.spread:
            label, own = str(one.get("topologyKey") or ""), _own_labels(one, pod)
            domain = self._in_domains(label)
            complete &= domain >= 0
            size = len(np.unique(domain[allowed & (domain >= 0)]))
            crowd += self._alike(label, one, own, pod.namespace) * math.log(size + 2) + _skew(one) - 1
        here = allowed & complete
        if not here.any():
            return np.zeros(len(crowd))
        low, high = crowd[here].min(), crowd[here].max()
        score = BEST * (high + low - crowd) / high if high > 0 else np.full(len(crowd), BEST)
        return np.where(here, score, 0.0)


def _liked(pod: Pod, node: Node) -> float:
    return sum(weight for weight, term in pod.preferred_nodes if term_matches_node(term, node))


def _own_labels(term: Mapping[str, Any], pod: Pod) -> tuple[tuple[str, str], ...]:
    """Labels of the pod's own that `matchLabelKeys` adds to the selector."""
    keys = term.get("matchLabelKeys")
    keys = map(str, keys) if isinstance(keys, list) else ()
    return tuple((key, pod.labels[key]) for key in keys if key in pod.labels)


def _has(pod: Pod, labels: Iterable[tuple[str, str]]) -> bool:
    return all(pod.labels.get(key) == value for key, value in labels)


def _skew(constraint: Mapping[str, Any]) -> int:
    skew = constraint.get("maxSkew")
    return skew if isinstance(skew, int) and 0 < skew < 2**31 else 1


def _up_to_best(scores: Float[np.ndarray, "A"], allowed: Bool[np.ndarray, "A"]) -> Float[np.ndarray, "A"]:
    most = scores[allowed].max()
    return BEST * scores / most if most > 0 else np.zeros(len(scores))


def _from_worst_to_best(scores: Float[np.ndarray, "A"], allowed: Bool[np.ndarray, "A"]) -> Float[np.ndarray, "A"]:
    least, most = scores[allowed].min(), scores[allowed].max()
    return BEST * (scores - least) / (most - least) if most > least else np.zeros(len(scores))
