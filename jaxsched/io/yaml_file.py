"""YAML files of users: cluster files, training configurations and sweeps.

Read are mappings, lists, text, numbers, true and false, and nothing. What YAML has beside these, and what hides a
mistake or grows without end, is refused with its line: keys given twice or that are no plain values, anchors and
aliases, tags, numbers in other bases than ten or with colons, control characters, deep nesting. A date is text.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from jaxsched.errors import UserError
from jaxsched.io.files import read_text, shorten

MOST_BYTES = 1 << 15
DEEPEST = 32  # levels
_TAG = "tag:yaml.org,2002:"
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
_MODE = re.compile("0[0-7]{1,5}")
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses what the module's docstring says."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Composes one node, which may hold others; this is where the parser goes deeper."""
        event: Any = self.peek_event()
        if self.check_event(yaml.AliasEvent):
            _refuse(event, f"the alias *{shorten(event.anchor)}, write its value out")
        if event.anchor is not None:
            _refuse(event, f"the anchor &{shorten(event.anchor)}, which is not read")
        if getattr(event, "tag", None) is not None:
            _refuse(event, f"the tag {shorten(event.tag)}, which is not read")
        self._depth += 1
        if self._depth > DEEPEST:
            _refuse(event, f"lists and mappings more than {DEEPEST} levels deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _refuse(event: Any, problem: str) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            _refuse(key_node, "a key should be one word or number")
        key: Any = loader.construct_object(key_node)
        if key in seen:
            _refuse(key_node, f"the key {shorten(repr(key))} stands twice")
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


def _whole(loader: _Loader, node: yaml.ScalarNode) -> int:
    if not _WHOLE.fullmatch(node.value):
        _refuse(node, f"the number {shorten(node.value)} should be written in digits, without a leading 0")
    if len(node.value) > 20 or abs(int(node.value)) >= 2**63:
        _refuse(node, f"the number {shorten(node.value)} is too large, should be less than 2^63")
    return int(node.value)


def _number(loader: _Loader, node: yaml.ScalarNode) -> float:
    if ":" in node.value or len(node.value) > 400:
        _refuse(node, f"the number {shorten(node.value)} should be written in digits with a point")
    value = float(loader.construct_yaml_float(node))
    if math.isinf(value) and "inf" not in node.value.lower():
        _refuse(node, f"the number {shorten(node.value)} is too large")
    return value


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    if hidden := _HIDDEN.search(node.value):
        _refuse(node, f"the text {shorten(repr(node.value))} has the character U+{ord(hidden[0]):04X}")
    return node.value


_Loader.yaml_constructors = {
    _TAG + "map": _mapping,
    _TAG + "seq": lambda loader, node: loader.construct_sequence(node, deep=True),
    _TAG + "str": _text,
    _TAG + "int": _whole,
    _TAG + "float": _number,
    _TAG + "bool": yaml.SafeLoader.construct_yaml_bool,
    _TAG + "null": yaml.SafeLoader.construct_yaml_null,
}
_Loader.yaml_implicit_resolvers = {  # a date is text, and so are `=` and `<<`
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in ("int", "float", "bool", "null")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# YAML 1.1 has no 1e9, which everybody else reads.
_Loader.add_implicit_resolver(_TAG + "float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), [*"-+0123456789"])


class _KubernetesLoader(_Loader):
    """Takes file modes such as 0644, too."""


_KubernetesLoader.yaml_constructors = {
    **_Loader.yaml_constructors,
    _TAG + "int": lambda loader, node: int(node.value, 8) if _MODE.fullmatch(node.value) else _whole(loader, node),
}


def read_yaml(path: str | Path, example: str) -> Any:
    """The content of a YAML file, None if it is empty.

    Raises UserError with the line for what is not read (see above); `example` tells where to see a good file.
    """
    return _read(path, example, lambda text: yaml.load(text, _Loader))


def read_yaml_documents(path: str | Path, example: str) -> list[Any]:
    """All documents of a YAML file as Kubernetes reads it; an empty one is None. UserError as `read_yaml`."""
    return _read(path, example, lambda text: list(yaml.load_all(text, _KubernetesLoader)))


def _read(path: str | Path, example: str, load: Callable[[str], Any]) -> Any:
    try:
        text = read_text(path, MOST_BYTES, f"a YAML file; see {example} for an example")
    except UserError as error:
        raise (UserError(f"{error}; see {example} for an example") if "no such file" in str(error) else error) from None
    try:
        return load(text)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}{line}: not YAML: {error.problem}; see {example} for an example") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not YAML: {shorten(' '.join(str(error).split()), 200)}") from None
