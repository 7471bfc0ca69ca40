"""Functions of users, called by ours: what goes wrong in them is told in one line that names them and their line.

Such are placement rules, orders of queues, policies, laws of interference, rewards and generators of jobs. Ours are
called as they are: a mistake in one of them is no mistake of the user.
"""

import inspect
import os
import traceback
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from jaxsched.errors import UserError

Args = ParamSpec("Args")
T = TypeVar("T")

_NOT_KNOWN = "an array has no value yet when a function is compiled: write jnp.where or jax.lax.cond in place of `if`"
_HINTS = {
    "TracerBoolConversionError": _NOT_KNOWN,
    "ConcretizationTypeError": _NOT_KNOWN,
    "TracerArrayConversionError": "an array has no value yet when a function is compiled: take jax.numpy, not NumPy",
    "TracerIntegerConversionError": "an array has no value yet when a function is compiled: it is no Python index",
}


def name_of(function: Any) -> str:
    """What a user would call it."""
    return getattr(function, "__name__", None) or type(function).__name__


def call(who: str, function: Callable[Args, T], *args: Args.args, **more: Args.kwargs) -> T:
    """What the function returns. UserError, which begins with `who`, if it is a user's and fails."""
    if is_ours(function):
        return function(*args, **more)
    try:
        return function(*args, **more)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{who} fails{_line(function, error)}: {_said(error)}") from error


def check_shape(who: str, value: Any, shape: tuple[int, ...], meaning: str, *, whole: bool = False) -> None:
    """UserError if what a user's function returned is no array of this shape, or not of `whole` numbers."""
    given = getattr(value, "shape", None)
    if given != shape:
        found = f"an array of shape {given}" if given is not None else type(value).__name__
        raise UserError(f"{who}: returned {found}, should be {meaning}, of shape {shape}")
    if whole and not np.issubdtype(value.dtype, np.integer):
        raise UserError(
            f"{who}: returned numbers of type {value.dtype}, should be {meaning}, an integer such as argmax"
        )


def is_ours(function: Any) -> bool:
    """Whether it is a function of this package."""
    return str(getattr(function, "__module__", "")).partition(".")[0] == "jaxsched"


def _line(function: Any, error: Exception) -> str:
    """Where in the user's file it went wrong, as far as that is known."""
    mine = inspect.unwrap(getattr(function, "__func__", function))
    try:
        file = inspect.getsourcefile(mine)
    except TypeError:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [at.lineno for at in frames if file and os.path.abspath(at.filename) == os.path.abspath(file)]
    code = getattr(mine, "__code__", None)
    return f" in line {lines[-1]}" if lines else f" when called (line {code.co_firstlineno})" if code else ""


def _said(error: Exception) -> str:
    kind, text = type(error).__name__, " ".join(str(error).split())
    hint = _NOT_KNOWN if text.startswith("The truth value of an array") else _HINTS.get(kind)
    return f"{kind}: {hint or text[:300]}"
