"""SIMD comparison of eight numbers, for hash tables with buckets of a cache line."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 8

_NUMBERS = ir.VectorType(ir.IntType(32), LANES)


@intrinsic
def matches(typing_context, array, start, wanted):
    """Return a mask with bit i set if array[start + i] equals `wanted`, for eight uint32 numbers."""
    if not (isinstance(array, types.Array) and array.dtype == types.uint32 and array.layout == "C"):
        return None

    def generate(context, builder, signature, arguments):
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(made.data, [arguments[1]]), _NUMBERS.as_pointer())
        numbers = builder.load(place, align=4)
        same = ir.Constant(_NUMBERS, ir.Undefined)
        for lane in range(LANES):
            same = builder.insert_element(same, arguments[2], ir.Constant(ir.IntType(32), lane))
        bits = builder.bitcast(builder.icmp_unsigned("==", numbers, same), ir.IntType(LANES))
        return builder.zext(bits, ir.IntType(32))

    return types.uint32(array, types.uint64, types.uint32), generate
