"""Whether selectors, tolerations and terms of affinity hold, by upstream's rules."""

from collections.abc import Mapping
from typing import Any

from jaxsched.kube.read.hints import integer
from jaxsched.kube.read.objects import Node, Pod, mapping, mappings


def selector_matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A label selector as pods and Services have it; an empty one matches everything."""
    exact = mapping(selector, "matchLabels")
    if any(labels.get(str(key)) != str(value) for key, value in exact.items()):
        return False
    return all(_holds(one, labels) for one in mappings(selector, "matchExpressions"))


def tolerates(pod: Pod, taint: Mapping[str, Any]) -> bool:
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


def term_matches_node(term: Mapping[str, Any], node: Node) -> bool:
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


def term_matches_pod(term: Mapping[str, Any], namespace: str, pod: Pod) -> bool:
    """A term of a pod in `namespace` is about the pod. Labels of namespaces are not read: a selector of them holds."""
    listed = term.get("namespaces")
    listed = [str(name) for name in listed] if isinstance(listed, list) else []
    anywhere = isinstance(term.get("namespaceSelector"), Mapping)
    named = listed or ([] if anywhere else [namespace])
    if not anywhere and pod.namespace not in named:
        return False
    return isinstance(term.get("labelSelector"), Mapping) and selector_matches(
        mapping(term, "labelSelector"), pod.labels
    )
