"""How kernels are compiled."""

from treemax.kernels import jit


def test_a_kernel_without_a_place_for_its_cache_is_compiled_all_the_same():
    """Numba has nowhere to cache a function that comes from no file; nor in a read-only installation."""
    made = {}
    exec("def double(x):\n    return 2 * x\n", made)
    for decorate in (jit.kernel, jit.fast_kernel, jit.inline_kernel, jit.fast_inline_kernel):
        assert decorate(made["double"])(21) == 42
