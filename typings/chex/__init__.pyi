"""What a type checker needs to know of chex: its dataclass decorator makes dataclasses."""

from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
Array = Any
ArrayTree = Any
PRNGKey = Any

@dataclass_transform(kw_only_default=True)
def dataclass(cls: Any = None, **options: Any) -> Callable[[type[T]], type[T]]: ...
def __getattr__(name: str) -> Any: ...
