"""Shapes in annotations, checked: those of functions while tests run, those of a `Pytree`'s fields on request."""

import ast
import dataclasses
import functools
import sys
import typing
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

import numpy as np
from beartype import BeartypeConf, beartype
from beartype.door import is_bearable
from jax import Array
from jaxtyping import AbstractArray, jaxtyped

from jaxsched.pytree import Pytree

F = TypeVar("F", bound=Callable)
_CHECK = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, too


def checked(function: F) -> F:
    """`function`, those of its arguments and results that are annotated with a shape checked at every call.

    Others are not: a wrong one may be what `function` tells its user, and one without shapes is returned as it is.
    """
    annotations = getattr(function, "__annotations__", {})
    shapes = {name: one for name, one in annotations.items() if _names_a_shape(one)}
    if not shapes:
        return function
    copy = FunctionType(function.__code__, function.__globals__, None, function.__defaults__, function.__closure__)
    only_shapes: Any = functools.update_wrapper(copy, function)
    only_shapes.__kwdefaults__, only_shapes.__annotations__ = function.__kwdefaults__, shapes
    del only_shapes.__wrapped__
    found: Any = jaxtyped(only_shapes, typechecker=_CHECK)
    found.__annotations__ = annotations
    return found


def _names_a_shape(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        return True
    return any(map(_names_a_shape, typing.get_args(annotation)))


def check_functions_of(package: str, but: str = "") -> None:
    """From now on, functions and methods of the package's modules are `checked` as these are imported, but for `but`'s.

    jaxtyping's own import hook wraps every function, annotated or not, inner ones at each run of the outer one, and
    `__init__` of every dataclass: JAX calls that of a `Pytree` with shapes, batches and tracers of any kind.
    """
    sys.meta_path.insert(0, _Finder(package, but))


def assert_fields(tree: Pytree) -> None:
    """Every field of `tree`, and of each `Pytree` in it, is as annotated; an axis' name has one size in all of them."""
    with jaxtyped("context"):
        _assert_fields(tree, type(tree).__name__)


def _assert_fields(tree: Pytree, path: str) -> None:
    hints = typing.get_type_hints(type(tree))
    for field in dataclasses.fields(typing.cast(Any, tree)):
        value, hint = getattr(tree, field.name), hints[field.name]
        if isinstance(value, Pytree):
            _assert_fields(value, f"{path}.{field.name}")
        found = f"{value.dtype}{list(value.shape)}" if isinstance(value, Array | np.ndarray) else type(value).__name__
        assert is_bearable(value, hint), f"{path}.{field.name}: should be {hint}, is {found}"


def _is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


class _Finder(MetaPathFinder):
    def __init__(self, package: str, but: str) -> None:
        self.package, self.but = package, but

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _is_in(fullname, self.package) or _is_in(fullname, self.but):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Compiled from the source, past the files of compiled modules, which others read, too."""
        path = self.get_filename(fullname)
        tree = _Decorate().visit(ast.parse(self.get_data(path), path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Decorate(ast.NodeTransformer):
    """Puts `checked` under the other decorators of functions and methods, but not of functions in functions."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        reference = ast.parse(f"__import__('sys').modules[{__name__!r}].checked", mode="eval").body
        node.decorator_list.append(ast.copy_location(reference, node))
        return node
