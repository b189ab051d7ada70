"""Atomic operations on array elements, for data shared by threads."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _place(context, builder, signature, arguments):
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


def _is_words(array):
    return isinstance(array, types.Array) and array.dtype == types.int64 and array.layout == "C"


@intrinsic
def fetch_add(typing_context, array, index, amount):
    """Atomically add `amount` to the int64 array[index]; return the old value."""
    if not _is_words(array):
        return None

    def generate(context, builder, signature, arguments):
        place = _place(context, builder, signature, arguments)
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), generate


@intrinsic
def acquire(typing_context, array, index):
    """Try to acquire the spin lock array[index] (int64, 0 is free); return whether it was free."""
    if not _is_words(array):
        return None

    def generate(context, builder, signature, arguments):
        place = _place(context, builder, signature, arguments)
        word = ir.IntType(64)
        both = builder.cmpxchg(place, ir.Constant(word, 0), ir.Constant(word, 1), "seq_cst", "seq_cst")
        return builder.extract_value(both, 1)

    return types.boolean(array, types.int64), generate


@intrinsic
def release(typing_context, array, index):
    """Release the spin lock array[index]; all earlier writes are visible to the next owner."""
    if not _is_words(array):
        return None

    def generate(context, builder, signature, arguments):
        place = _place(context, builder, signature, arguments)
        builder.store_atomic(ir.Constant(ir.IntType(64), 0), place, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64), generate
