"""Operations on array elements that no other thread can come between, for structures that threads share."""

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
    """array[index] += amount on int64; returns what was there before."""
    if not _is_words(array):
        return None

    def generate(context, builder, signature, arguments):
        place = _place(context, builder, signature, arguments)
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), generate


@intrinsic
def take(typing_context, array, index):
    """Set array[index] from 0 to 1 on int64; whether it was 0. A lock, with `give`."""
    if not _is_words(array):
        return None

    def generate(context, builder, signature, arguments):
        place = _place(context, builder, signature, arguments)
        word = ir.IntType(64)
        both = builder.cmpxchg(place, ir.Constant(word, 0), ir.Constant(word, 1), "seq_cst", "seq_cst")
        return builder.extract_value(both, 1)

    return types.boolean(array, types.int64), generate


@intrinsic
def give(typing_context, array, index):
    """Set array[index] to 0 on int64, after everything written before is there for others to see."""
    if not _is_words(array):
        return None

    def generate(context, builder, signature, arguments):
        place = _place(context, builder, signature, arguments)
        builder.store_atomic(ir.Constant(ir.IntType(64), 0), place, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64), generate
