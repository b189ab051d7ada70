"""Decorators that compile the kernels.

Kernels release the GIL (threads come from `concurrent.futures`, never from `parallel=True`) and are cached on disk. A
cached kernel contains the kernels that it calls. Numba compiles it again when its own file has changed; here, also when
any module of the package that its module imports has.

The first kernel that a process has to compile is announced in one line on standard error, by the logger
"treemax.compiling".

Only kernels call inline kernels and those whose name begins with an underscore: they are compiled without what Python
needs to call them, which would take about a quarter of the time. To call one from Python is a segmentation fault.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import inspect
import logging
import operator
import pickle
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar, cast

import llvmlite.binding
import numba
from numba.core import event, types
from numba.core.caching import CompileResultCacheImpl
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags
from numba.core.environment import lookup_environment
from numba.core.targetconfig import ConfigStack
from numba.core.typing.context import Context

logger = logging.getLogger("treemax.compiling")
Function = TypeVar("Function", bound=Callable[..., Any])
TESTED_NUMBA = (
    (0, 66),
    (0, 68),
)  # oldest and newest version whose internals `_KernelCompiler` uses; others compile as usual
UNUSED_PASSES = {  # for `with`, closures, comprehensions, Numba's own inlining, sums of arrays, and `inspect_types`
    "WithLifting", "InlineClosureLikes", "InlineInlinables", "InlineOverloads", "MakeFunctionToJitFunction", "LiteralUnroll",
    "NopythonRewrites", "AnnotateTypes",
}  # fmt: skip
_IMPORT = re.compile(r"^from ([\w.]+) import ([^()\n]+|\([^()]*\))", re.MULTILINE)


def kernel(function: Function) -> Function:
    """Compile an exact kernel: integers, parsing, sums whose order matters."""
    return _compiled(function)


def fast_kernel(function: Function) -> Function:
    """Compile a floating-point kernel that may reorder additions to vectorise."""
    return _compiled(function, fastmath=True)


def inline_kernel(function: Function) -> Function:
    """Compile a small exact function that is inlined into its callers."""
    return _compiled(function, forceinline=True)


def fast_inline_kernel(function: Function) -> Function:
    """Compile a small floating-point function that is inlined into its callers and vectorised with them."""
    return _compiled(function, fastmath=True, forceinline=True)


def bare_kernel(function: Function) -> Function:
    """Compile an exact kernel that allocates nothing, without reference counting of arrays.

    Numba counts references around calls with atomic additions: several nanoseconds per array, which adds up when named
    tuples of arrays are passed to small functions. Such a kernel must not return arrays.
    """
    return _compiled(function, _nrt=False)


def bare_inline_kernel(function: Function) -> Function:
    """Compile a `bare_kernel` that is inlined into its callers."""
    return _compiled(function, _nrt=False, forceinline=True)


def bare_fast_kernel(function: Function) -> Function:
    """Compile a `bare_kernel` that may reorder additions to vectorise."""
    return _compiled(function, _nrt=False, fastmath=True)


def bare_fast_inline_kernel(function: Function) -> Function:
    """Compile a `bare_fast_kernel` that is inlined into its callers."""
    return _compiled(function, _nrt=False, fastmath=True, forceinline=True)


BARE_OPTIONS: Any = {"_nrt": False, "forceinline": True, "error_model": "numpy"}  # the same for overloads


class _Library(JITCodeLibrary):
    """The code of a kernel."""

    def _optimize_functions(self, module: Any) -> None:
        """Do what Numba does, without making a list of passes for the functions that are only declared: most of them."""
        codegen: Any = self._codegen
        module.data_layout = codegen._data_layout
        for function in module.functions:
            if not function.is_declaration:
                passes, builder = codegen._function_pass_manager()
                passes.run(function, builder)


class _CallableFromPython(_Library):
    """The code of a kernel and its wrapper, which converts the arguments and is not worth optimising."""

    def add_ir_module(self, module: Any) -> None:
        if module.name == "wrapper":
            for function in module.functions:
                if not function.is_declaration:
                    function.attributes |= {"noinline", "optnone"}
        super().add_ir_module(module)

    def _finalize_specific(self) -> None:
        super()._finalize_specific()
        codegen: Any = self._codegen
        for variable in self._final_module.global_variables:
            environment = lookup_environment(variable.name)
            if environment is not None:  # also those of the functions that only kernels call
                codegen.set_env(variable.name, environment)


class _CalledByKernels(_Library):
    """The code of a function that only kernels call: Numba would optimise it and turn it into machine code, and do both
    again in every kernel that it becomes a part of, which took a quarter of the time."""

    @property
    def codegen(self) -> Any:
        return _NoEnvironments

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    def serialize_using_object_code(self) -> Any:
        return self.serialize_using_bitcode()

    @classmethod
    def _unserialize(cls, codegen: Any, state: Any) -> _CalledByKernels:
        library = cls(codegen, state[0])
        library._final_module = llvmlite.binding.parse_bitcode(state[2])
        library._finalize_final_module()
        return library


class _NoEnvironments:
    """Stands for the code generator: a function without machine code has no address for what Numba calls its environment."""

    @staticmethod
    def set_env(name: str, environment: Any) -> None:
        pass


class _CacheOfInner(CompileResultCacheImpl):
    """Loads functions that only kernels call. Numba would turn them into machine code, which changes the code that becomes a
    part of kernels: these would then have other last bits than if everything were compiled together."""

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        result = super().rebuild(_ContextOfInner(target_context), payload)
        return result._replace(target_context=target_context)


class _ContextOfInner:
    """Stands for Numba's target context, and its code generator, while such a function is loaded."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def codegen(self) -> Any:
        return self

    def unserialize_library(self, state: Any) -> _CalledByKernels:
        return _CalledByKernels._unserialize(self._context.codegen(), state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class _KernelFlags(Flags):
    """The options of a kernel. Numba keeps a copy while it compiles, by which it looks up every function that the kernel
    calls, comparing option by option: a tenth of the time. Kernels with the same options have the same copy."""

    __slots__ = ()
    copies: ClassVar[list[_SharedFlags]] = []

    def copy(self) -> _SharedFlags:
        values = self.values()
        for known in self.copies:
            if known.values() == values:
                return known
        self.copies.append(_SharedFlags(self))
        return self.copies[-1]


class _SharedFlags(Flags):
    """Options of which there is only one object with the same values."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def copy(self) -> Flags:
        return Flags(self)


class _KernelTyping(Context):
    """Numba's typing context, which remembers the types of operators and built-in functions: Numba would try all their
    versions at every use, which took a tenth of the time."""

    known: ClassVar[dict[Any, tuple[Any, Any]]] = {}

    @classmethod
    @functools.cache
    def of(cls, context: Any) -> _KernelTyping:
        """Return a typing context with the same state."""
        typing = cls.__new__(cls)
        typing.__dict__ = context.__dict__
        return typing

    def resolve_function_type(self, function: Any, arguments: Any, named: Any) -> Any:
        built_in: Any = self._lookup_global(function) or function
        if type(built_in) not in (types.Function, types.NumberClass) or named:
            return super().resolve_function_type(function, arguments, named)
        key = (built_in._code, *[argument._code for argument in arguments])
        with_options = (ConfigStack.top_or_none(), *key)
        known = self.known.get(key) or self.known.get(with_options)
        if known is None:
            signature = super().resolve_function_type(function, arguments, named)
            if signature is None:
                return None
            implementation = getattr(built_in, "_impl_keys", {}).get(signature.args)
            independent = implementation is None or implementation is built_in.typing_key
            known = signature, implementation
            self.known[key if independent else with_options] = known
        signature, implementation = known
        if implementation is not None:
            built_in._impl_keys[signature.args] = implementation
        return signature

    def resolve_setitem(self, target: Any, index: Any, value: Any) -> Any:
        return self.resolve_function_type(operator.setitem, (target, index, value), {})


class _KernelCompiler(Compiler):
    """Numba's compiler with less work on wrappers, options and functions that only kernels call, and without passes that
    kernels do not need."""

    def define_pipelines(self) -> Any:
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [each for each in pipeline.passes if each[0].__name__ not in UNUSED_PASSES]
        return pipelines

    def compile_extra(self, function: Any) -> Any:
        inner = self.state.flags.no_cpython_wrapper
        self.state.flags = _KernelFlags(self.state.flags)
        library = _CalledByKernels if inner else _CallableFromPython
        self.state.library = library(self.state.targetctx.codegen(), function.__qualname__)
        self.state.library.enable_object_caching()
        self.state.typingctx = _KernelTyping.of(self.state.typingctx)
        return super().compile_extra(function)


def _compiled(function: Function, **options: Any) -> Function:
    """Compile a function, cached on disk if possible: a read-only installation and home, as in many containers, must
    not fail."""
    inner = "forceinline" in options or function.__name__.startswith("_")
    options |= {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": inner, "no_cfunc_wrapper": True}
    if TESTED_NUMBA[0] <= numba.version_info[:2] <= TESTED_NUMBA[1]:
        options["pipeline_class"] = _KernelCompiler
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError as error:
        if "no locator" not in str(error):
            raise
        return cast(Function, numba.njit(**options)(function))
    if inner and "pipeline_class" in options:
        compiled._cache._impl = _CacheOfInner(function)
    file = compiled._cache._cache_file
    file._source_stamp = (file._source_stamp, _sources_digest(function.__module__))
    file._load_index = functools.partial(_cached_versions, file._load_index)
    file._load_data = functools.partial(_cached_code, file._load_data)
    file.save = functools.partial(_save_if_possible, file.save)
    return cast(Function, compiled)


def _cached_versions(load: Callable[[], dict[Any, str]]) -> dict[Any, str]:
    """Return the cached versions of a kernel by signature; none if a type of a signature no longer exists, or the file is
    not whole."""
    try:
        return load()
    except (AttributeError, ImportError):  # a named tuple was renamed or moved in an upgrade
        return {}
    except (EOFError, pickle.UnpicklingError):  # the machine lost power
        return {}


def _cached_code(load: Callable[[str], Any], name: str) -> Any:
    """Return the code in a file of the cache; if the file is not whole, raise an OSError, after which Numba compiles."""
    try:
        return load(name)
    except (EOFError, pickle.UnpicklingError) as error:
        raise OSError(f"{name} is not whole") from error


def _save_if_possible(save: Callable[[Any, Any], None], key: Any, data: Any) -> None:
    """Save a compiled kernel in the cache; warn, once in a process, if there is no room."""
    try:
        save(key, data)
    except OSError as error:
        if not _compilations.failed_to_save:
            _compilations.failed_to_save = True
            logger.warning(
                "treemax: compiled kernels cannot be saved (%s), and are compiled again in every process. Set the "
                "environment variable NUMBA_CACHE_DIR to a folder with room.",
                error,
            )


@functools.cache
def _sources_digest(name: str) -> bytes:
    """Return a hash of the sources of a module and of all modules of its package that it imports, directly or not.

    Called when the module is imported, since files may change later.
    """
    reached: dict[str, bytes] = {}
    waiting = {name}
    while waiting:
        module = waiting.pop()
        reached[module], imports = _source(module)
        waiting |= imports - reached.keys()
    return hashlib.sha256(b"".join(reached[module] for module in sorted(reached))).digest()


@functools.cache
def _source(name: str) -> tuple[bytes, frozenset[str]]:
    """Return a hash of the source of a module, if it has one, and the modules of its package that it imports."""
    try:
        source = inspect.getsource(sys.modules[name])
    except (KeyError, OSError, TypeError):  # code without a module, or a module without a source
        source = ""
    return hashlib.sha256(source.encode()).digest(), frozenset(_imports(source, name.partition(".")[0]))


def _imports(source: str, package: str) -> Iterator[str]:
    """Return the modules of the package that are imported at the top level of a source."""
    for module, names in _IMPORT.findall(source):
        if module.partition(".")[0] == package:
            yield module
            for part in re.findall(r"\w+", names):
                if f"{module}.{part}" in sys.modules:
                    yield f"{module}.{part}"


class _Compilations(event.Listener):
    """Announces the first compilation of a process, measures the time of all, and pauses the garbage collector, which
    would take a tenth of it."""

    def __init__(self) -> None:
        self.announced = False
        self.failed_to_save = False
        self.seconds = 0.0
        self.depth = 0  # of compilations that need one another
        self.started = 0.0
        self.paused = False

    def on_start(self, event: Any) -> None:
        kernel = event.data["dispatcher"]
        if not self.depth and not str(kernel.py_func.__module__).startswith("treemax."):
            return
        self.depth += 1
        if self.depth > 1:
            return
        self.started, self.paused = time.perf_counter(), gc.isenabled()
        gc.disable()
        if self.announced:
            return
        self.announced = True
        if kernel.stats.cache_path is not None:
            logger.warning(
                "treemax: compiling for the first use of a model or method; this takes seconds, once on this machine"
            )
        else:
            logger.warning(
                "treemax: compiling, in every process: neither the folder of the package nor the home folder is "
                "writable. Set the environment variable NUMBA_CACHE_DIR to a folder that is."
            )

    def on_end(self, event: Any) -> None:
        self.depth = max(0, self.depth - 1)
        if self.depth == 0 and self.started:
            self.seconds += time.perf_counter() - self.started
            self.started = 0.0
            if self.paused:
                gc.enable()


def seconds_of_compiling() -> float:
    """Return the time that this process has spent on compiling kernels, with the compilation that goes on now."""
    started = _compilations.started  # first: what is counted twice while a compilation ends is better than not at all
    return _compilations.seconds + (time.perf_counter() - started if started else 0.0)


def is_compiling() -> bool:
    """Return whether this process compiles a kernel now."""
    return bool(_compilations.started)


_compilations = _Compilations()
event.register("numba:compile", _compilations)
