"""A policy of one's own from a Python file, for the command line: `FILE.py:NAME`."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from jaxsched.errors import UserError
from jaxsched.io.inputs import unreadable


def from_file(spec: str) -> Any:
    """The object `NAME` of `FILE.py`, which is run as a module. UserError if there is none, or the file fails."""
    path, _, name = spec.rpartition(":")
    file = Path(path)
    try:
        is_file = file.is_file()
    except OSError as error:
        raise unreadable(path, error) from None
    if not is_file:
        raise UserError(f"policy {spec!r}: no such file {path}")
    module_name = f"jaxsched_policy_{file.stem}"
    found = importlib.util.spec_from_file_location(module_name, file)
    assert found is not None and found.loader is not None  # of a file that is there
    module = importlib.util.module_from_spec(found)
    sys.modules[module_name] = module
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UserError(f"policy {spec!r}: {file.name} fails: {type(error).__name__}: {error}") from error
    if not callable(getattr(module, name, None)):
        known = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise UserError(f"policy {spec!r}: {file.name} has no function or Policy {name!r}; it has {known or 'none'}")
    return getattr(module, name)
