"""Tuples of arrays, and the arrays in them, as machine code holds them: as pointers.

Numba passes a named tuple on by value, field by field, and takes a whole array out of it, with its shape and strides,
before it reads one number. That is some hundred instructions for each `t.queue[p, i]`, of which LLVM leaves four. Here
a tuple is an address (`Reference`), and an array within is an address, too (`Table`). Both outlive whoever uses them
and do not change. What is in an array does.
"""

import functools
import hashlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, imputils
from numba.core import types as numba_types
from numba.core.registry import cpu_target
from numba.core.typing import templates
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, signature
from numba.extending import infer_getattr, intrinsic, lower_getattr, lower_getattr_generic, models, register_model
from numba.np.arrayobj import load_item, store_item

# What these are, Numba says only when it runs.
infer_global: Any = templates.infer_global
lower_builtin: Any = imputils.lower_builtin
_ADDRESS = ir.IntType(8).as_pointer()


class _Pointer(numba_types.Type):
    """An address of a value of another type."""

    def __init__(self, of: Any) -> None:
        self.of = of
        super().__init__(name=f"{type(self).__name__}({of})")

    @property
    def mangling_args(self) -> tuple[str, tuple[str, ...]]:
        """Part of functions' names: of tuples it would be thousands of letters, in each instruction that calls one."""
        return type(self).__name__, (hashlib.sha256(self.name.encode()).hexdigest()[:12],)


class Reference(_Pointer):
    """Of a named tuple."""


class Table(_Pointer):
    """Of an array without gaps, that is, of its shape and of where its numbers are."""


@register_model(Reference)
@register_model(Table)
class PointerModel(models.PrimitiveModel):
    """How they are held."""

    def __init__(self, manager: Any, pointer: _Pointer) -> None:
        super().__init__(manager, pointer, _ADDRESS)


@intrinsic
def by_address(typingctx: Any, fields: numba_types.NamedTuple) -> Any:
    """A named tuple of the caller as a `Reference`, for functions that it calls."""

    def address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(cgutils.alloca_once_value(builder, args[0]), _ADDRESS)

    return Reference(fields)(fields), address


@infer_getattr
class Fields(AttributeTemplate):
    """Types of the fields."""

    key = Reference

    def generic_resolve(self, reference: Reference, field: str) -> numba_types.Type:
        """See Numba's `AttributeTemplate`."""
        return _pointed(reference.of.types[reference.of.fields.index(field)])


def _pointed(kind: numba_types.Type) -> numba_types.Type:
    if isinstance(kind, numba_types.NamedTuple):
        return Reference(kind)
    return Table(kind) if isinstance(kind, numba_types.Array) and kind.layout == "C" and kind.ndim else kind


@lower_getattr_generic(Reference)
def _field(context: Any, builder: Any, reference: Reference, address: Any, field: str) -> Any:
    place = reference.of.fields.index(field)
    kind = reference.of.types[place]
    at = _member(context, builder, reference, address, place)
    return at if isinstance(_pointed(kind), _Pointer) else _loaded(context, builder, kind, at)


def _member(context: Any, builder: Any, pointer: _Pointer, address: Any, place: int, axis: int = 0) -> Any:
    """Where a member lies, or an axis of one that has a number for each."""
    return builder.gep(address, [ir.IntType(64)(_offsets(pointer)[place] + 8 * axis)], inbounds=True)


@functools.cache
def _offsets(pointer: _Pointer) -> list[int]:
    """Bytes from the start to each member. LLVM says it, of a module that has to be made for it: so only once."""
    context: Any = cpu_target.target_context
    kind = context.get_value_type(pointer.of)
    layout = kind._get_ll_global_value_type(context.target_data)
    return [context.target_data.get_element_offset(layout, place) for place in range(len(kind.elements))]


def _loaded(context: Any, builder: Any, kind: numba_types.Type, at: Any) -> Any:
    """What does not change, of that type."""
    return _load(builder, builder.bitcast(at, context.get_value_type(kind).as_pointer()))


def _load(builder: Any, at: Any) -> Any:
    """LLVM may keep it over writes elsewhere. Member by member, since it leaves whole ones."""
    kind = at.type.pointee
    if isinstance(kind, (ir.LiteralStructType, ir.ArrayType)):
        count = len(kind.elements) if isinstance(kind, ir.LiteralStructType) else kind.count
        whole = ir.Constant(kind, ir.Undefined)
        for i in range(count):
            whole = builder.insert_value(whole, _load(builder, cgutils.gep_inbounds(builder, at, 0, i)), i)
        return whole
    value = builder.load(at)
    value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


_NITEMS, _DATA, _SHAPE = 2, 4, 5  # members of Numba's arrays


def _length(context: Any, builder: Any, table: Table, address: Any, axis: int) -> Any:
    return _loaded(context, builder, numba_types.intp, _member(context, builder, table, address, _SHAPE, axis))


@infer_getattr
class TableFields(AttributeTemplate):
    """What is asked of arrays."""

    key = Table

    def resolve_shape(self, table: Table) -> numba_types.Type:
        """Its lengths."""
        return numba_types.UniTuple(numba_types.intp, table.of.ndim)

    def resolve_size(self, table: Table) -> numba_types.Type:
        """Their product."""
        return numba_types.intp


@lower_getattr(Table, "shape")
def _shape(context: Any, builder: Any, table: Table, address: Any) -> Any:
    lengths = [_length(context, builder, table, address, axis) for axis in range(table.of.ndim)]
    return context.make_tuple(builder, numba_types.UniTuple(numba_types.intp, table.of.ndim), lengths)


@lower_getattr(Table, "size")
def _size(context: Any, builder: Any, table: Table, address: Any) -> Any:
    return _loaded(context, builder, numba_types.intp, _member(context, builder, table, address, _NITEMS))


@infer_global(len)
class Length(AbstractTemplate):
    """Of its first axis."""

    def generic(self, args: Sequence[Any], kws: Any) -> Any:
        """See Numba's `AbstractTemplate`."""
        if len(args) == 1 and isinstance(args[0], Table):
            return signature(numba_types.intp, *args)
        return None


@lower_builtin(len, Table)
def _len(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _length(context, builder, sig.args[0], args[0], 0)


@infer_global(operator.getitem)
class GetItem(AbstractTemplate):
    """An item; with fewer integers than axes, the array that is there."""

    def generic(self, args: Sequence[Any], kws: Any) -> Any:
        """See Numba's `AbstractTemplate`."""
        table, index = args
        if not isinstance(table, Table):
            return None
        if _is_item(table, index):
            return signature(table.of.dtype, table, _as_integers(index))
        whole = self.context.resolve_function_type(operator.getitem, (table.of, index), {})
        return signature(whole.return_type, table, whole.args[1])


@infer_global(operator.setitem)
class SetItem(AbstractTemplate):
    """Likewise."""

    def generic(self, args: Sequence[Any], kws: Any) -> Any:
        """See Numba's `AbstractTemplate`."""
        table, index, value = args
        if not isinstance(table, Table):
            return None
        if _is_item(table, index):
            return signature(numba_types.none, table, _as_integers(index), table.of.dtype)
        whole = self.context.resolve_function_type(operator.setitem, (table.of, index, value), {})
        return signature(whole.return_type, table, *whole.args[1:])


def _as_integers(index: Any) -> Any:
    if isinstance(index, numba_types.BaseTuple):
        return numba_types.UniTuple(numba_types.intp, len(index))
    return numba_types.intp


def _is_item(table: Table, index: Any) -> bool:
    parts = getattr(index, "types", (index,))
    return len(parts) == table.of.ndim and all(getattr(part, "signed", False) for part in parts)


def _item(context: Any, builder: Any, table: Table, address: Any, kind: Any, index: Any) -> Any:
    """Where an item lies. A negative index counts from the end."""
    if isinstance(kind, numba_types.BaseTuple):
        parts = cgutils.unpack_tuple(builder, index, len(kind))
    else:
        parts = [index]
    at = None
    for axis, part in enumerate(parts):
        length = _length(context, builder, table, address, axis)
        negative = builder.icmp_signed("<", part, part.type(0))
        part = builder.select(negative, builder.add(part, length), part)
        at = part if at is None else builder.add(builder.mul(at, length), part)
    data = _loaded(
        context, builder, numba_types.CPointer(table.of.dtype), _member(context, builder, table, address, _DATA)
    )
    return builder.gep(data, [at])


def _whole(context: Any, builder: Any, function: Callable, sig: Any, args: Any) -> Any:
    """By Numba's own arrays."""
    table = sig.args[0]
    array = _loaded(context, builder, table.of, args[0])
    own = signature(sig.return_type, table.of, *sig.args[1:])
    return context.get_function(function, own)(builder, (array, *args[1:]))


@lower_builtin(operator.getitem, Table, numba_types.Any)
def _getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    table, index = sig.args
    if not _is_item(table, index):
        return _whole(context, builder, operator.getitem, sig, args)
    return load_item(context, builder, table.of, _item(context, builder, table, args[0], index, args[1]))


@lower_builtin(operator.setitem, Table, numba_types.Any, numba_types.Any)
def _setitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    table, index, value = sig.args
    if not _is_item(table, index):
        return _whole(context, builder, operator.setitem, sig, args)
    store_item(context, builder, table.of, args[2], _item(context, builder, table, args[0], index, args[1]))
    return context.get_dummy_value()
