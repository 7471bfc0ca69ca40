"""Tuples of many arrays that machine code passes on as one pointer.

Numba passes a tuple by value: some hundred arguments of each function here, and most of the time of compiling.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, models, register_model


class Reference(types.Type):
    """A pointer to a named tuple that outlives it and does not change."""

    def __init__(self, of: types.NamedTuple) -> None:
        self.of = of
        super().__init__(name=f"Reference({of})")

    def place(self, field: str) -> int:
        """Which of the fields."""
        return self.of.fields.index(field)


@register_model(Reference)
class ReferenceModel(models.PrimitiveModel):
    """How it is held: an address."""

    def __init__(self, manager: Any, reference: Reference) -> None:
        target = manager.lookup(reference.of).get_value_type()
        super().__init__(manager, reference, target.as_pointer())


@intrinsic
def by_reference(typingctx: Any, fields: types.NamedTuple) -> Any:
    """A named tuple of the caller as a `Reference`, for functions that it calls."""

    def address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return cgutils.alloca_once_value(builder, args[0])

    return Reference(fields)(fields), address


@infer_getattr
class Fields(AttributeTemplate):
    """Types of the fields; a tuple within is a `Reference`, too."""

    key = Reference

    def generic_resolve(self, reference: Reference, field: str) -> types.Type:
        """See Numba's `AttributeTemplate`."""
        found = reference.of.types[reference.place(field)]
        return Reference(found) if isinstance(found, types.NamedTuple) else found


@lower_getattr_generic(Reference)
def _field(context: Any, builder: Any, reference: Reference, address: Any, field: str) -> Any:
    at = cgutils.gep_inbounds(builder, address, 0, reference.place(field))
    if isinstance(reference.of.types[reference.place(field)], types.NamedTuple):
        return at
    return _loaded(builder, at)


def _loaded(builder: Any, at: Any) -> Any:
    """What does not change: LLVM may keep it over writes elsewhere. Member by member, since it leaves whole ones."""
    kind = at.type.pointee
    if isinstance(kind, (ir.LiteralStructType, ir.ArrayType)):
        count = len(kind.elements) if isinstance(kind, ir.LiteralStructType) else kind.count
        whole = ir.Constant(kind, ir.Undefined)
        for i in range(count):
            whole = builder.insert_value(whole, _loaded(builder, cgutils.gep_inbounds(builder, at, 0, i)), i)
        return whole
    value = builder.load(at)
    value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value
