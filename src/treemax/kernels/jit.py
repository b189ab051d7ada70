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
    return _compiled(function)


def fast_kernel(function: Function) -> Function:
    """Compile a floating-point kernel that may reorder additions, so that it vectorises."""
    return _compiled(function, fastmath=True)


def inline_kernel(function: Function) -> Function:
    """Compile a small exact piece that belongs inside its callers' loops: a call would cost more than it does."""
    return _compiled(function, forceinline=True)


def fast_inline_kernel(function: Function) -> Function:
    """Compile a small floating-point piece that belongs inside its callers' loops and vectorises with them."""
    return _compiled(function, fastmath=True, forceinline=True)


def bare_kernel(function: Function) -> Function:
    """Compile an exact kernel that allocates nothing, without counts of references to the arrays that it hands on.

    Numba counts them around calls, with atomic additions: several nanoseconds an array, which adds up where named
    tuples of arrays go to small functions. Such a kernel must not give back arrays.
    """
    return _compiled(function, _nrt=False)


def bare_inline_kernel(function: Function) -> Function:
    """The same for a small piece that belongs inside its callers' loops."""
    return _compiled(function, _nrt=False, forceinline=True)


def bare_fast_kernel(function: Function) -> Function:
    """The same for floating-point work that may reorder additions, so that it vectorises."""
    return _compiled(function, _nrt=False, fastmath=True)


BARE_OPTIONS: Any = {"_nrt": False, "forceinline": True, "error_model": "numpy"}  # the same for overloads


def _compiled(function: Function, **options: Any) -> Function:
    """Cached on disk where there is a place for it: neither a read-only installation nor a home that cannot
    be written to, as in many containers, is a reason to fail."""
    compile_plainly: Any = numba.njit(nogil=True, error_model="numpy", **options)
    compile_cached: Any = numba.njit(nogil=True, cache=True, error_model="numpy", **options)
    try:
        return cast(Function, compile_cached(function))
    except RuntimeError as error:
        if "no locator" not in str(error):
            raise
        return cast(Function, compile_plainly(function))
