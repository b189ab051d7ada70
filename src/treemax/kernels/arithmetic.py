"""Arithmetic shared by several kernels."""

from __future__ import annotations

import numpy as np

from treemax.kernels.intrinsics import maximum, minimum
from treemax.kernels.jit import fast_inline_kernel, fast_kernel, inline_kernel

_LOG2_E = np.float32(1.442695040888963)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_ONE = np.float32(1.0)
MOST_COUNT = 2**31 - 1  # 32-bit counts saturate here


@fast_inline_kernel
def exp32(x):
    """Return e**x in float32: range reduction and a polynomial, which vectorises, unlike `math.exp`."""
    x = minimum(maximum(x, np.float32(-87.0)), np.float32(88.0))
    n = np.floor(x * _LOG2_E + np.float32(0.5))
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + _ONE
    power = (np.int32(n) + np.int32(127)) << np.int32(23)  # 2**n, in the exponent bits
    return p * np.int32(power).view(np.float32)


@fast_kernel
def softmax(scores):
    """Convert at least one score to softmax probabilities, in place."""
    top = scores[0]
    for c in range(scores.size):
        top = maximum(top, scores[c])
    total = np.float32(0.0)
    for c in range(scores.size):
        e = exp32(scores[c] - top)
        scores[c] = e
        total += e
    scale = _ONE / total
    for c in range(scores.size):
        scores[c] *= scale


@fast_inline_kernel
def log32(x):
    """Return the natural logarithm of a positive normal float32, which vectorises, unlike `math.log`."""
    bits = np.float32(x).view(np.int32)
    mantissa = np.int32((bits & np.int32(0x007FFFFF)) | np.int32(0x3F000000)).view(np.float32)  # 0.5 to 1
    exponent = np.float32((bits >> np.int32(23)) - np.int32(126))
    low = mantissa < np.float32(0.70710678)
    exponent -= _ONE if low else np.float32(0.0)
    m = (mantissa + mantissa if low else mantissa) - _ONE
    p = np.float32(7.0376836292e-2)
    p = p * m - np.float32(1.1514610310e-1)
    p = p * m + np.float32(1.1676998740e-1)
    p = p * m - np.float32(1.2420140846e-1)
    p = p * m + np.float32(1.4249322787e-1)
    p = p * m - np.float32(1.6668057665e-1)
    p = p * m + np.float32(2.0000714765e-1)
    p = p * m - np.float32(2.4999993993e-1)
    p = p * m + np.float32(3.3333331174e-1)
    square = m * m
    return m - np.float32(0.5) * square + p * m * square + exponent * _LN2_LOW + exponent * _LN2_HIGH


@inline_kernel
def next_random(random):
    """Return the next state of a 64-bit random generator; use the upper bits."""
    return random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)


@inline_kernel
def random_for(seed, number):
    """Return the state of `next_random` for one of many items, whatever their order (SplitMix64)."""
    mixed = seed + np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@inline_kernel
def stride(n, random):
    """Return a random stride that visits each of 0..n-1 once."""
    step = random % n if n > 1 else 1
    while True:
        a, b = n, step
        while b:
            a, b = b, a % b
        if a == 1:
            return step
        step = (step + 1) % n


@inline_kernel
def copy_into(target, source, count):
    """Copy the first `count` numbers. To assign slices takes two seconds to compile, for the message of its error."""
    for i in range(count):
        target[i] = source[i]
