"""Functions of NumPy and Python as intrinsics: new arrays of one dimension, the larger or smaller of two numbers, the bits
of a number, and pointers.

Numba compiles `np.empty`, `max` and their like again for every type and every set of compiler options, which takes a
third of the time of the kernels themselves; intrinsics become part of the kernel that uses them.
"""

from __future__ import annotations

import operator
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array


def _allocate(context, builder, signature, size):
    """Allocate an array; a size that cannot be allocated raises MemoryError."""
    array_type = signature.return_type
    array = make_array(array_type)(context, builder)
    data_type = context.get_data_type(array_type.dtype)
    item_size = context.get_constant(types.intp, context.get_abi_sizeof(data_type))
    alignment = context.get_constant(types.uint32, context.get_preferred_array_alignment(array_type.dtype))
    memory = context.nrt.meminfo_alloc_aligned(builder, size=builder.mul(size, item_size), align=alignment)
    populate_array(
        array,
        data=builder.bitcast(context.nrt.meminfo_data(builder, memory), data_type.as_pointer()),
        shape=cgutils.pack_array(builder, [size]),
        strides=cgutils.pack_array(builder, [item_size]),
        itemsize=item_size,
        meminfo=memory,
    )
    return array


def _new_array_of(dtype):
    """Return the signature of a function of size and dtype."""
    return types.Array(dtype.dtype, 1, "C")(types.intp, dtype)


@intrinsic
def empty(typing_context, size, dtype):
    """Return an array without initial values."""

    def generate(context, builder, signature, arguments):
        return _allocate(context, builder, signature, arguments[0])._getvalue()

    return _new_array_of(dtype), generate


@intrinsic
def zeros(typing_context, size, dtype):
    """Return an array of zeros."""

    def generate(context, builder, signature, arguments):
        array = _allocate(context, builder, signature, arguments[0])
        cgutils.memset(builder, array.data, builder.mul(array.itemsize, arguments[0]), 0)
        return array._getvalue()

    return _new_array_of(dtype), generate


def _either(comparison):
    """Return an intrinsic that returns the second of two numbers if it compares so with the first, else the first."""

    @intrinsic
    def either(typing_context, a, b):
        common = typing_context.unify_types(a, b)

        def generate(context, builder, signature, arguments):
            compare = context.get_function(comparison, types.boolean(common, common))
            return builder.select(compare(builder, arguments[::-1]), arguments[1], arguments[0])

        return common(common, common), generate

    return either


maximum = _either(operator.ge)
minimum = _either(operator.le)


@intrinsic
def reinterpret(typing_context, number, dtype):
    """Return the number of a type, of the same size, that has the same bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    return dtype.dtype(number, dtype), generate


Pointer = Any  # in annotations


@intrinsic
def address_of(typing_context, array):
    """Return the address of a contiguous array."""

    def generate(context, builder, signature, arguments):
        array = make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(array.data, context.get_value_type(types.int64))

    return types.int64(array), generate


@intrinsic
def pointer_at(typing_context, address, dtype):
    """Return a pointer to memory that the caller keeps: an array without length, negative indices and reference count.

    Kernels that pass many arrays to one another compile several times as fast with pointers.
    """

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(dtype.dtype)(types.int64, dtype), generate


@intrinsic
def moved(typing_context, pointer, n):
    """Return a pointer to pointer[n]."""

    def generate(context, builder, signature, arguments):
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.int64), generate


def data_of(context, builder, kind, value):
    """Return where the numbers of an array or a pointer are, for intrinsics."""
    return value if isinstance(kind, types.CPointer) else make_array(kind)(context, builder, value).data
