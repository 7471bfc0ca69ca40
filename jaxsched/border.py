"""The border of the Python API: what a public function is called with is checked once, at its door.

Its annotations say what it takes. A wrong call is a `UserError`, one line: which argument, what it is, and what would
be right. Values that are of the right type and out of range are the business of whoever reads them. A check takes some
microseconds; in a function under `jit` it is made when that is traced, and never again.
"""

import difflib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from jaxsched.errors import UserError

T = TypeVar("T")
_LONGEST = 60  # characters of a value in a message
_PLAIN: dict[Any, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool | np.bool_), "True or False"),
    int: (lambda value: isinstance(value, Integral) and not isinstance(value, bool), "a whole number"),
    float: (lambda value: _is_number(value), "a number"),
    str: (lambda value: isinstance(value, str), "a text"),
    type(None): (lambda value: value is None, "None"),
}


def checked(target: T) -> T:
    """A function that checks its arguments, or a class whose objects are made by one that does.

    Annotations that are texts, and those of numpy, say nothing here.
    """
    if isinstance(target, type):
        target.__init__ = _with_door(target.__init__, target.__name__)
        return target
    return _with_door(target, getattr(target, "__qualname__", "function"))  # pyright: ignore[reportArgumentType]


def perhaps(name: str, known: Iterable[str]) -> str:
    """`; perhaps you meant NAME`, of the known one that is nearest, if one is near."""
    near = difflib.get_close_matches(name, [*known], 1)
    return f"; perhaps you meant {near[0]!r}" if near else ""


def _with_door(function: Any, who: str) -> Any:
    signature, hints = inspect.signature(function), function.__annotations__

    @functools.wraps(function)
    def door(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise _wrong_names(who, signature, kwargs, error) from None
        sizes: dict[str, tuple[str, int]] = {}
        for name, value in given.items():
            hint, kind = hints.get(name, Any), signature.parameters[name].kind
            if kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
                continue
            if not _fits(value, hint):
                raise UserError(f"{who}: {name} is {_shown(value)}; it should be {_words(hint)}")
            _check_sizes(who, name, value, hint, sizes)
        return function(*args, **kwargs)

    return door


def _wrong_names(who: str, signature: inspect.Signature, given: Mapping[str, Any], error: TypeError) -> UserError:
    known = [name for name in signature.parameters if name != "self"]
    for name in given:
        if name not in known:
            return UserError(f"{who}: unknown argument {name!r}{perhaps(name, known)}; it takes {', '.join(known)}")
    return UserError(f"{who}: {error}; it takes {', '.join(known)}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says."""
    if hint is Any:
        return True
    if hint in _PLAIN:
        return _PLAIN[hint][0](value)
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Callable:
        return callable(value)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        of = parts or (Any, Any)
        return isinstance(value, Mapping) and all(_fits(k, of[0]) and _fits(v, of[1]) for k, v in value.items())
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence):
        of = parts[0] if parts else Any
        several = isinstance(value, origin if origin is not list else Sequence) and not isinstance(value, str | bytes)
        return several and all(_fits(one, of) for one in value)
    if hasattr(hint, "dim_str") and hasattr(hint, "dtypes"):
        return _is_array(value, hint)
    if getattr(hint, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(hint) if not name.startswith("_"))
    says_nothing = not isinstance(hint, type) or hint.__module__.startswith(("numpy", "jaxtyping"))
    return says_nothing or isinstance(value, hint)


def _is_number(value: Any) -> bool:
    if getattr(value, "shape", None) == ():
        return getattr(value, "dtype", np.dtype(object)).kind in "iuf"
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_array(value: Any, hint: Any) -> bool:
    """A JAX array as the annotation of jaxtyping says; or any array, or number, of this kind and rank."""
    if isinstance(value, hint):
        return True
    if isinstance(value, bool) or not (isinstance(value, int | float) or hasattr(value, "dtype")):
        return False
    if isinstance(value, int) and not -(2**31) <= value < 2**31:
        return False
    dtype: Any = getattr(value, "dtype", None)
    kind = getattr(np.asarray(value).dtype if dtype is None else dtype, "kind", "")
    wanted = {name[0] for name in hint.dtypes if isinstance(name, str)}
    return ("i" if kind == "u" else kind) in wanted and np.ndim(value) == len(hint.dim_str.split())


def _check_sizes(who: str, name: str, value: Any, hint: Any, sizes: dict[str, tuple[str, int]]) -> None:
    """UserError where an axis of a name has another size than in an argument before."""
    for axis, size in zip(getattr(hint, "dim_str", "").split(), np.shape(value) if hasattr(hint, "dim_str") else ()):
        other, before = sizes.setdefault(axis, (name, size))
        if size != before:
            raise UserError(f"{who}: {name} has {size} entries, where {other} has {before}; they should be as many")


def _shown(value: Any) -> str:
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of somebody else's class
        text = type(value).__name__
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return text if isinstance(value, str | int | float | None) else f"{type(value).__name__} {text}"


def _words(hint: Any) -> str:
    """What an annotation asks for."""
    if hint in _PLAIN:
        return _PLAIN[hint][1]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_words, parts)))
    if origin is Callable:
        return "a function"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"a list, each of them {_words(parts[0])}" if parts else "a list"
    name = getattr(hint, "__name__", str(hint))
    return f"an array, {name}" if hasattr(hint, "dim_str") else f"a {name}"
