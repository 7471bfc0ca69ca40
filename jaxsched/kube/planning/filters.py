"""Which nodes a pod may go to, by upstream's rules: readiness, taints, selectors, affinity, volumes, running pods."""

from collections.abc import Mapping
from typing import Any

from jaxsched.kube.planning.hints import integer
from jaxsched.kube.planning.objects import Node, Pod, mapping, mappings

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


def selector_holds(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A label selector as pods and Services have it; an empty one matches everything."""
    exact = mapping(selector, "matchLabels")
    if any(labels.get(str(key)) != str(value) for key, value in exact.items()):
        return False
    return all(_holds(one, labels) for one in mappings(selector, "matchExpressions"))


def tolerated(pod: Pod, taint: Mapping[str, Any]) -> bool:
    """Some toleration of the pod is about the taint."""
    return any(_tolerates(toleration, taint) for toleration in pod.tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    match toleration.get("operator") or "Equal":
        case "Exists":
            return True
        case "Equal":
            return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")
    return False


def term_holds(term: Mapping[str, Any], node: Node) -> bool:
    """All expressions of a term hold; a term without any matches nothing."""
    expressions = mappings(term, "matchExpressions")
    fields = mappings(term, "matchFields")
    if not expressions and not fields:
        return False
    return all(_holds(one, node.labels) for one in expressions) and all(
        _holds(one, {"metadata.name": node.name}) for one in fields
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = str(expression.get("key")), expression.get("values")
    values = [str(value) for value in values] if isinstance(values, list) else []
    there = key in labels
    match expression.get("operator"):
        case "In":
            return there and labels[key] in values
        case "NotIn":
            return not there or labels[key] not in values
        case "Exists":
            return there
        case "DoesNotExist":
            return not there
        case "Gt" | "Lt" as operator:
            own, bound = integer(labels.get(key, "")), integer(values[0] if values else "")
            return own is not None and bound is not None and (own > bound if operator == "Gt" else own < bound)
    return False
