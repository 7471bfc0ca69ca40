"""How the API server of the tests merges patches and reads field selectors."""

import re
from typing import Any


def merge(target: dict, patch: dict) -> None:
    """Strategic merge as far as the suite needs it: conditions merge by type, null deletes, other lists replace."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif name == "conditions":
            by_type = {c["type"]: c for c in target.get(name) or []}
            for condition in value:
                by_type[condition["type"]] = {**by_type.get(condition["type"], {}), **condition}
            target[name] = list(by_type.values())
        elif isinstance(value, dict):
            merge(target.setdefault(name, {}), value)
        else:
            target[name] = value


def selected(one: dict, query: dict[str, str]) -> bool:
    """Field selectors on metadata.name, spec.nodeName, spec.schedulerName and status.phase."""
    for term in filter(None, (query.get("fieldSelector") or "").split(",")):
        field, equal, value = re.fullmatch(r"([\w.]+)(!=|==?)(.*)", term).groups()
        found: Any = one
        for part in field.split("."):
            found = (found or {}).get(part, "")
        if (str(found or "") == value) == (equal == "!="):
            return False
    return True
