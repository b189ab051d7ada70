"""How every kernel is compiled.

Kernels release the GIL (threads come from `concurrent.futures`, never from `parallel=True`) and are cached
on disk. Numba's cache does not notice an edited callee in another module, so a kernel and the kernels it
calls live in one module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile an exact kernel: integer work, parsing, anything where the order of additions matters."""
    return cast(Function, numba.njit(nogil=True, cache=True, error_model="numpy")(function))


def fast_kernel(function: Function) -> Function:
    """Compile a floating-point kernel that may reorder additions, so that it vectorises."""
    return cast(Function, numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=True)(function))


def inline_kernel(function: Function) -> Function:
    """Compile a small exact piece that belongs inside its callers' loops: a call would cost more than it does."""
    compiled = numba.njit(nogil=True, cache=True, error_model="numpy", forceinline=True)(function)
    return cast(Function, compiled)


def fast_inline_kernel(function: Function) -> Function:
    """Compile a small floating-point piece that belongs inside its callers' loops and vectorises with them."""
    compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=True, forceinline=True)(
        function
    )
    return cast(Function, compiled)
