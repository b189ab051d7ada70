"""SIMD vectors of sixteen float32 numbers, for inner loops that are too short for automatic vectorisation.

LLVM vectorises long loops well, but keeps sixteen sums over a row's features in memory. A `vector` stays in registers
(one of AVX-512, two of AVX2, four of SSE or NEON). These are intrinsics, compiled into the kernel that uses them.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from treemax.kernels.intrinsics import data_of
from treemax.kernels.jit import fast_inline_kernel

WIDTH = 16

_FLOATS = ir.VectorType(ir.FloatType(), WIDTH)
_BITS = ir.IntType(WIDTH)
_HALVES = ir.VectorType(ir.HalfType(), WIDTH)
_SHORTS = ir.VectorType(ir.IntType(16), WIDTH)
_WORDS = ir.VectorType(ir.IntType(32), WIDTH)


class VectorType(types.Type):
    """The Numba type of sixteen float32 numbers."""

    def __init__(self):
        super().__init__(name="vector16")


vector_type = VectorType()


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, numba_type):
        super().__init__(manager, numba_type, _FLOATS)


def _place(context, builder, signature, arguments):
    """Return where array[start] of float32 numbers is, without bounds checks."""
    place = builder.gep(data_of(context, builder, signature.args[0], arguments[0]), [arguments[1]])
    return builder.bitcast(place, _FLOATS.as_pointer())


def _is_floats(array):
    """Return whether a type is that of a contiguous array or a pointer of float32 numbers."""
    if isinstance(array, types.Array):
        return array.dtype == types.float32 and array.layout == "C" and array.ndim == 1
    return array == types.CPointer(types.float32)


@intrinsic
def load(typing_context, array, start):
    """Load array[start:start + 16]."""
    if not (_is_floats(array) and isinstance(start, types.Integer)):
        return None

    def generate(context, builder, signature, arguments):
        return builder.load(_place(context, builder, signature, arguments), align=4)

    return vector_type(array, types.uint64), generate


@intrinsic
def store(typing_context, array, start, value):
    """Store a vector to array[start:start + 16]."""
    if not (_is_floats(array) and isinstance(start, types.Integer) and value == vector_type):
        return None

    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], _place(context, builder, signature, arguments[:2]), align=4)
        return context.get_dummy_value()

    return types.void(array, types.uint64, vector_type), generate


def _converts_halves(context):
    """Return whether the processor converts half-precision numbers; if not, LLVM calls functions that Numba lacks."""
    machine, _, features = context.codegen().magic_tuple()
    return machine.startswith(("aarch64", "arm64")) or "+f16c" in features.split(",")


def _filled(kind, number):
    """Return a constant: the same number in all lanes, if there are several."""
    return ir.Constant(kind, [number] * WIDTH if isinstance(kind, ir.VectorType) else number)


def _widened(context, builder, shorts, floats, words, halves):
    """Convert the bits of finite half-precision numbers to float32."""
    if _converts_halves(context):
        return builder.fpext(builder.bitcast(shorts, halves), floats)
    bits = builder.zext(shorts, words)
    magnitude = builder.shl(builder.and_(bits, _filled(words, 0x7FFF)), _filled(words, 13))
    magnitude = builder.fmul(builder.bitcast(magnitude, floats), _filled(floats, 2.0**112))  # another bias of exponents
    sign = builder.shl(builder.and_(bits, _filled(words, 0x8000)), _filled(words, 16))
    return builder.bitcast(builder.or_(builder.bitcast(magnitude, words), sign), floats)


def _narrowed(context, builder, value):
    """Convert sixteen numbers, at most the largest half-precision number, to the bits of the nearest ones."""
    if _converts_halves(context):
        return builder.bitcast(builder.fptrunc(value, _HALVES), _SHORTS)
    bits = builder.bitcast(value, _WORDS)
    magnitude = builder.bitcast(builder.and_(bits, _filled(_WORDS, 0x7FFFFFFF)), _FLOATS)
    magnitude = builder.bitcast(builder.fmul(magnitude, _filled(_FLOATS, 2.0**-112)), _WORDS)
    last = builder.and_(builder.lshr(magnitude, _filled(_WORDS, 13)), _filled(_WORDS, 1))  # ties to even
    magnitude = builder.add(magnitude, builder.add(last, _filled(_WORDS, 0xFFF)))
    sign = builder.lshr(builder.and_(bits, _filled(_WORDS, 0x80000000)), _filled(_WORDS, 16))
    return builder.trunc(builder.or_(builder.lshr(magnitude, _filled(_WORDS, 13)), sign), _SHORTS)


def _halves(context, builder, signature, arguments, kind):
    """Load the bits of half-precision numbers of a contiguous uint16 array, without bounds checks."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    place = builder.bitcast(builder.gep(array.data, [arguments[1]]), kind.as_pointer())
    return builder.load(place, align=2)


@intrinsic
def load_halves(typing_context, array, start):
    """Load sixteen half-precision numbers from `start` of a flattened uint16 array."""
    if not (isinstance(array, types.Array) and array.dtype == types.uint16 and array.layout == "C"):
        return None

    def generate(context, builder, signature, arguments):
        shorts = _halves(context, builder, signature, arguments, _SHORTS)
        return _widened(context, builder, shorts, _FLOATS, _WORDS, _HALVES)

    return vector_type(array, types.uint64), generate


@intrinsic
def load_half(typing_context, array, index):
    """Load one half-precision number of a flattened uint16 array."""
    if not (isinstance(array, types.Array) and array.dtype == types.uint16 and array.layout == "C"):
        return None

    def generate(context, builder, signature, arguments):
        short = _halves(context, builder, signature, arguments, ir.IntType(16))
        return _widened(context, builder, short, ir.FloatType(), ir.IntType(32), ir.HalfType())

    return types.float32(array, types.uint64), generate


@intrinsic
def load_halves_at(typing_context, address):
    """Load sixteen half-precision numbers from a 4-byte aligned address, without checks."""

    def generate(context, builder, signature, arguments):
        shorts = builder.load(builder.inttoptr(arguments[0], _SHORTS.as_pointer()), align=4)
        return _widened(context, builder, shorts, _FLOATS, _WORDS, _HALVES)

    return vector_type(types.uint64), generate


def _rounded_by_chance(builder, value, dither, n_bits):
    """Return the bits of sixteen numbers without the lower ones, rounded away from zero or towards it by chance, so that
    many small additions are not lost: the chance is the lower bits of `dither`. The sign does not matter."""
    lower = 2**n_bits - 1
    chance = builder.and_(builder.bitcast(dither, _WORDS), _filled(_WORDS, lower))
    words = builder.add(builder.bitcast(value, _WORDS), chance)
    return builder.and_(words, _filled(_WORDS, 0xFFFFFFFF - lower))


@intrinsic
def hashed(typing_context, a):
    """Return bits, as numbers, that depend on all bits of each lane but its sign, as a dither for roundings by chance.

    The lower bits of a gradient itself would do worse: they change slowly, and with what was rounded.
    """

    def generate(context, builder, signature, arguments):
        words = builder.and_(builder.bitcast(arguments[0], _WORDS), _filled(_WORDS, 0x7FFFFFFF))
        words = builder.mul(words, _filled(_WORDS, 0x9E3779B1))
        words = builder.xor(words, builder.lshr(words, _filled(_WORDS, 15)))
        return builder.bitcast(words, _FLOATS)

    return vector_type(vector_type), generate


def _store_first(builder, address, shorts, n):
    """Store the first n = 2, 4, 8 or 16 of sixteen numbers of 16 bits to an address aligned to their size."""

    def store(count):
        mask = ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(count)))
        first = builder.shuffle_vector(shorts, ir.Constant(_SHORTS, ir.Undefined), mask)
        builder.store(first, builder.inttoptr(address, first.type.as_pointer()), align=2 * count)

    with builder.if_else(builder.icmp_unsigned("==", n, ir.Constant(n.type, WIDTH)), likely=True) as (whole, part):
        with whole:
            store(WIDTH)
        with part:
            for count in (2, 4, 8):
                with builder.if_then(builder.icmp_unsigned("==", n, ir.Constant(n.type, count))):
                    store(count)


@intrinsic
def store_halves_at(typing_context, address, value, dither, n):
    """Store the first n = 2, 4, 8 or 16 numbers in half precision to an address aligned to their size, without checks.

    They are rounded up or down by chance, the lower bits of `dither`. A half-precision number stays what it is.
    """
    if value != vector_type or dither != vector_type:
        return None

    def generate(context, builder, signature, arguments):
        words = _rounded_by_chance(builder, arguments[1], arguments[2], 13)
        shorts = _narrowed(context, builder, builder.bitcast(words, _FLOATS))
        _store_first(builder, arguments[0], shorts, arguments[3])
        return context.get_dummy_value()

    return types.void(types.uint64, vector_type, vector_type, types.uint64), generate


@intrinsic
def load_bfloats_at(typing_context, address):
    """Load sixteen bfloat16 numbers from a 4-byte aligned address, without checks."""

    def generate(context, builder, signature, arguments):
        shorts = builder.load(builder.inttoptr(arguments[0], _SHORTS.as_pointer()), align=4)
        words = builder.shl(builder.zext(shorts, _WORDS), _filled(_WORDS, 16))
        return builder.bitcast(words, _FLOATS)

    return vector_type(types.uint64), generate


@intrinsic
def store_bfloats_at(typing_context, address, value, dither, n):
    """Store the first n = 2, 4, 8 or 16 numbers as bfloat16 to an address aligned to their size, without checks.

    They are rounded up or down by chance, the lower bits of `dither`. A number that is a bfloat16 stays what it is.
    """
    if value != vector_type or dither != vector_type:
        return None

    def generate(context, builder, signature, arguments):
        words = _rounded_by_chance(builder, arguments[1], arguments[2], 16)
        shorts = builder.trunc(builder.lshr(words, _filled(_WORDS, 16)), _SHORTS)
        _store_first(builder, arguments[0], shorts, arguments[3])
        return context.get_dummy_value()

    return types.void(types.uint64, vector_type, vector_type, types.uint64), generate


@intrinsic
def load_short_at(typing_context, address):
    """Load the sixteen bits at an address, without checks."""

    def generate(context, builder, signature, arguments):
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(16).as_pointer()), align=2)

    return types.uint16(types.uint64), generate


@intrinsic
def store_short_at(typing_context, address, bits):
    """Store sixteen bits to an address, without checks."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(16).as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint16), generate


@intrinsic
def splat(typing_context, number):
    """Broadcast a number to a vector."""

    def generate(context, builder, signature, arguments):
        one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), arguments[0], ir.Constant(ir.IntType(32), 0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
        return builder.shuffle_vector(one, ir.Constant(_FLOATS, ir.Undefined), mask)

    return vector_type(types.float32), generate


@intrinsic
def extract(typing_context, value, lane):
    """Return one lane."""
    if value != vector_type:
        return None

    def generate(context, builder, signature, arguments):
        return builder.extract_element(arguments[0], builder.trunc(arguments[1], ir.IntType(32)))

    return types.float32(vector_type, types.uint64), generate


def _binary(operation):
    @intrinsic
    def binary(typing_context, a, b):
        def generate(context, builder, signature, arguments):
            return operation(builder, *arguments)

        return vector_type(vector_type, vector_type), generate

    return binary


add = _binary(lambda builder, a, b: builder.fadd(a, b, flags=("contract",)))
subtract = _binary(lambda builder, a, b: builder.fsub(a, b, flags=("contract",)))
multiply = _binary(lambda builder, a, b: builder.fmul(a, b, flags=("contract",)))
divide = _binary(lambda builder, a, b: builder.fdiv(a, b, flags=("contract",)))
minimum = _binary(lambda builder, a, b: builder.select(builder.fcmp_ordered("<", a, b), a, b))
maximum = _binary(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))


@intrinsic
def multiply_add(typing_context, a, b, c):
    """Return a * b + c, rounded once (FMA)."""

    def generate(context, builder, signature, arguments):
        function_type = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.fma.v{WIDTH}f32")
        return builder.call(function, arguments)

    return vector_type(vector_type, vector_type, vector_type), generate


def _reduced(name, first=None):
    """Return a reduction over the lanes, in any order."""

    @intrinsic
    def reduced(typing_context, a):
        def generate(context, builder, signature, arguments):
            before = [] if first is None else [ir.Constant(ir.FloatType(), first)]
            kinds = [argument.type for argument in before] + [_FLOATS]
            function_type = ir.FunctionType(ir.FloatType(), kinds)
            name_of_width = f"llvm.vector.reduce.{name}.v{WIDTH}f32"
            function = cgutils.get_or_insert_function(builder.module, function_type, name_of_width)
            return builder.call(function, before + list(arguments), fastmath=("nnan", "reassoc"))

        return types.float32(vector_type), generate

    return reduced


largest = _reduced("fmax")
total = _reduced("fadd", 0.0)


@intrinsic
def store_totals(typing_context, array, start, a, b, c, d):
    """Store the totals of four vectors to array[start:start + 4], added in the order of `total`, with half the shuffles."""
    if not (_is_floats(array) and isinstance(start, types.Integer)):
        return None

    def generate(context, builder, signature, arguments):
        def halves_added(one, other, width):
            """Add the upper half of each group of lanes to the lower; the groups of `one` come first."""
            groups = range(0, 2 * WIDTH, width)
            lower = [lane for first in groups for lane in range(first, first + width // 2)]
            mask, kind = ir.VectorType(ir.IntType(32), len(lower)), ir.Constant
            upper = [lane + width // 2 for lane in lower]
            parts = [builder.shuffle_vector(one, other, kind(mask, lanes)) for lanes in (lower, upper)]
            return builder.fadd(*parts, flags=("contract",))

        pairs = [halves_added(one, other, WIDTH) for one, other in (arguments[2:4], arguments[4:])]
        fours = halves_added(*pairs, WIDTH // 2)
        undefined = ir.Constant(_FLOATS, ir.Undefined)
        for distance in (2, 1):
            mask = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [lane ^ distance for lane in range(WIDTH)])
            fours = builder.fadd(fours, builder.shuffle_vector(fours, undefined, mask), flags=("contract",))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), 4), list(range(0, WIDTH, 4)))
        totals = builder.shuffle_vector(fours, undefined, mask)
        place = builder.gep(data_of(context, builder, signature.args[0], arguments[0]), [arguments[1]])
        builder.store(totals, builder.bitcast(place, totals.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, types.uint64, vector_type, vector_type, vector_type, vector_type), generate


def _unary(name):
    @intrinsic
    def unary(typing_context, a):
        def generate(context, builder, signature, arguments):
            function_type = ir.FunctionType(_FLOATS, [_FLOATS])
            function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.{name}.v{WIDTH}f32")
            return builder.call(function, arguments)

        return vector_type(vector_type), generate

    return unary


floor = _unary("floor")  # largest integers not above
square_root = _unary("sqrt")


@intrinsic
def power_of_two(typing_context, a):
    """Return 2**a for integers between -126 and 127, by writing the exponent bits."""

    def generate(context, builder, signature, arguments):
        exponent = builder.add(builder.fptosi(arguments[0], _WORDS), _filled(_WORDS, 127))
        return builder.bitcast(builder.shl(exponent, _filled(_WORDS, 23)), _FLOATS)

    return vector_type(vector_type), generate


@intrinsic
def choose(typing_context, bits, if_set, otherwise):
    """Select lane i of `if_set` if bit i is set, else that of `otherwise`."""

    def generate(context, builder, signature, arguments):
        mask = builder.bitcast(builder.trunc(arguments[0], _BITS), ir.VectorType(ir.IntType(1), WIDTH))
        return builder.select(mask, arguments[1], arguments[2])

    return vector_type(types.uint32, vector_type, vector_type), generate


@intrinsic
def bits_above(typing_context, a, b):
    """Return a mask with bit i set if lane i of `a` is above that of `b`."""

    def generate(context, builder, signature, arguments):
        above = builder.bitcast(builder.fcmp_ordered(">", *arguments), _BITS)
        return builder.zext(above, ir.IntType(32))

    return types.uint32(vector_type, vector_type), generate


@intrinsic
def lowest_bit(typing_context, bits):
    """Return the index of the lowest set bit; there must be one."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint32(types.uint32), generate


@intrinsic
def count_bits(typing_context, bits):
    """Return the number of set bits."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.uint32(types.uint32), generate


def _compressed(builder, lanes, bits):
    """Return the lanes whose bits are set, one after the other; the lanes after them are undefined."""
    mask = builder.bitcast(builder.trunc(bits, _BITS), ir.VectorType(ir.IntType(1), WIDTH))
    kind = "f32" if lanes.type == _FLOATS else "i32"
    function_type = ir.FunctionType(lanes.type, [lanes.type, mask.type, lanes.type])
    name = f"llvm.experimental.vector.compress.v{WIDTH}{kind}"
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, [lanes, mask, ir.Constant(lanes.type, ir.Undefined)])


@intrinsic
def store_chosen(typing_context, array, start, value, bits):
    """Store the lanes whose bits are set from array[start] on, one after the other. What follows them, up to
    array[start + 16], is overwritten."""
    if not (_is_floats(array) and isinstance(start, types.Integer) and value == vector_type):
        return None

    def generate(context, builder, signature, arguments):
        place = _place(context, builder, signature, arguments[:2])
        builder.store(_compressed(builder, arguments[2], arguments[3]), place, align=4)
        return context.get_dummy_value()

    return types.void(array, types.uint64, vector_type, types.uint32), generate


@intrinsic
def store_bit_numbers(typing_context, array, start, first, bits):
    """Store `first` plus the number of every set bit, in ascending order, from array[start] on, a uint32 array. What
    follows them, up to array[start + 16], is overwritten."""
    if not (isinstance(array, types.Array) and array.dtype == types.uint32 and array.layout == "C"):
        return None

    def generate(context, builder, signature, arguments):
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(made.data, [arguments[1]]), _WORDS.as_pointer())
        base = builder.insert_element(ir.Constant(_WORDS, ir.Undefined), arguments[2], ir.Constant(ir.IntType(32), 0))
        base = builder.shuffle_vector(base, ir.Constant(_WORDS, ir.Undefined), _filled(_WORDS, 0))
        numbers = builder.add(base, ir.Constant(_WORDS, list(range(WIDTH))))
        builder.store(_compressed(builder, numbers, arguments[3]), place, align=4)
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.uint32, types.uint32), generate


@intrinsic
def any_differs(typing_context, a, b):
    """Return whether any lane of `a` differs from that of `b`."""

    def generate(context, builder, signature, arguments):
        different = builder.bitcast(builder.fcmp_unordered("!=", *arguments), _BITS)
        return builder.icmp_unsigned("!=", different, ir.Constant(_BITS, 0))

    return types.boolean(vector_type, vector_type), generate


@intrinsic
def prefetch(typing_context, array, index):
    """Prefetch array[index] into the cache."""
    if not (isinstance(array, (types.Array, types.CPointer)) and isinstance(index, types.Integer)):
        return None

    def generate(context, builder, signature, arguments):
        place = builder.gep(data_of(context, builder, signature.args[0], arguments[0]), [arguments[1]])
        place = builder.bitcast(place, ir.IntType(8).as_pointer())
        _call_prefetch(builder, place)
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


@intrinsic
def prefetch_at(typing_context, address):
    """Prefetch the cache line at an address."""

    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        _call_prefetch(builder, place)
        return context.get_dummy_value()

    return types.void(types.uint64), generate


def _call_prefetch(builder, place):
    i32 = ir.IntType(32)
    function_type = ir.FunctionType(ir.VoidType(), [place.type, i32, i32, i32])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
    builder.call(function, [place, ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)])


@fast_inline_kernel
def exponential(x):
    """Return e**x of each lane, to a few ulps: range reduction and a polynomial."""
    x = minimum(maximum(x, splat(np.float32(-87.0))), splat(np.float32(88.0)))
    n = floor(multiply_add(x, splat(np.float32(1.442695040888963)), splat(np.float32(0.5))))
    r = multiply_add(n, splat(np.float32(-0.693359375)), x)
    r = multiply_add(n, splat(np.float32(2.12194440e-4)), r)
    p = splat(np.float32(1.9875691500e-4))
    p = multiply_add(p, r, splat(np.float32(1.3981999507e-3)))
    p = multiply_add(p, r, splat(np.float32(8.3334519073e-3)))
    p = multiply_add(p, r, splat(np.float32(4.1665795894e-2)))
    p = multiply_add(p, r, splat(np.float32(1.6666665459e-1)))
    p = multiply_add(p, r, splat(np.float32(5.0000001201e-1)))
    p = add(multiply_add(multiply(p, r), r, r), splat(np.float32(1.0)))
    return multiply(p, power_of_two(n))
