"""Compilation of kernels.

`_imports` decides when cached kernels are stale, which would be slow to test by compiling.
"""

import ast
import gc
import importlib
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from treemax.kernels import jit
from treemax.kernels.intrinsics import empty, maximum, minimum, zeros


def test_a_kernel_without_a_place_for_its_cache_is_compiled_all_the_same():
    """Numba has nowhere to cache a function that comes from no file; nor in a read-only installation."""
    made = {}
    exec("def double(x):\n    return 2 * x\n", made)
    for decorate in (jit.kernel, jit.fast_kernel, jit.bare_kernel, jit.bare_fast_kernel):
        assert decorate(made["double"])(21) == 42


def test_a_compilation_that_cannot_be_kept_names_the_remedy(caplog):
    made = {"__name__": "treemax.example"}
    exec("def double(x):\n    return 2 * x\n", made)
    announcement = jit._Compilations()  # that of the process may have spoken before
    jit.event.register("numba:compile", announcement)
    try:
        assert jit.kernel(made["double"])(21) == 42
    finally:
        jit.event.unregister("numba:compile", announcement)
    assert "NUMBA_CACHE_DIR" in caplog.messages[-1]


def test_the_garbage_collector_is_paused_only_while_kernels_are_compiled():
    made = {"__name__": "treemax.example", "enabled": [], "gc": gc}
    exec("def double(x):\n    return 2 * x\n", made)
    compiled, before = jit.kernel(made["double"]), jit.seconds_of_compiling()

    class Observer(jit.event.Listener):
        def on_start(self, event):
            made["enabled"].append(gc.isenabled())

        def on_end(self, event):
            pass

    jit.event.register("numba:compile", observer := Observer())
    try:
        compiled(21)
    finally:
        jit.event.unregister("numba:compile", observer)
    assert made["enabled"] == [False] and gc.isenabled()
    assert 0 < jit.seconds_of_compiling() - before < 60
    gc.disable()
    try:
        compiled(2.5)
        assert not gc.isenabled(), "the caller's setting is kept"
    finally:
        gc.enable()


OPERATIONS = """
def results(a, b):
    total = a + b
    total += a * 3
    return total, a - b, a / b, float(a), abs(b), a < b, np.float32(a) * np.float32(b), min(a, b), -a
"""


def test_remembered_types_of_operators_give_what_numba_gives():
    made = {"__name__": "treemax.example", "np": np}
    exec(OPERATIONS, made)
    plain, exact, fast = numba.njit(made["results"]), jit.kernel(made["results"]), jit.fast_kernel(made["results"])
    for kind in (np.int32, np.int64, np.uint32, np.uint64, np.float32, np.float64):
        for other in (np.int64, np.uint32, np.float32):
            expected = plain(kind(7), other(2))
            for compiled in (exact, fast):
                found = compiled(kind(7), other(2))
                assert found == expected and [type(x) for x in found] == [type(x) for x in expected]
                assert compiled.nopython_signatures[-1].return_type == plain.nopython_signatures[-1].return_type


@jit.kernel
def new_arrays(n):
    """Arrays of all kinds that kernels allocate."""
    whole, words, filled = zeros(n, np.int64), empty(n, np.uint32), empty(n, np.float32)
    for i in range(n):
        words[i], filled[i] = 2 * i, maximum(np.float32(i), np.float32(1.5))
    return whole, words, filled, zeros(n, filled.dtype)


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_arrays_that_kernels_allocate(n):
    whole, words, filled, copied = new_arrays(n)
    np.testing.assert_array_equal(whole, np.zeros(n, np.int64), strict=True)
    np.testing.assert_array_equal(words, 2 * np.arange(n, dtype=np.uint32), strict=True)
    np.testing.assert_array_equal(filled, np.maximum(np.arange(n, dtype=np.float32), np.float32(1.5)), strict=True)
    np.testing.assert_array_equal(copied, np.zeros(n, np.float32), strict=True)


def test_an_array_that_does_not_fit_in_memory_is_refused():
    with pytest.raises(MemoryError):
        new_arrays(1 << 45)


@jit.kernel
def extremes(a, b):
    """The larger and the smaller of two numbers."""
    return maximum(a, b), minimum(a, b)


@pytest.mark.parametrize(("a", "b"), [(1, 2), (2, 1), (-1.5, 3), (2.5, float("nan")), (np.uint64(7), np.uint64(3))])
def test_the_larger_and_the_smaller_are_those_of_python(a, b):
    np.testing.assert_equal(extremes(a, b), (max(a, b), min(a, b)))


@pytest.mark.slow
def test_nothing_is_left_to_compile_after_the_command(tmp_path):
    """`treemax compile` goes through all that ordinary use compiles."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    program = """
import treemax
from treemax.datasets import load_wordnet
train, test = load_wordnet()
model = treemax.TextModel(treemax.TfidfText(), treemax.OneVsAll(verbose=0)).fit(train.texts[:2000], train.y[:2000])
model.predict_topk(test.texts[:10], 3)
model.save("model.treemax")
treemax.load("model.treemax").predict(test.texts[:10])
"""
    for arguments, times in ((["-m", "treemax", "compile", "one-vs-all"], 1), (["-c", program], 0)):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert done.stderr.count("compiling for the first use") == times, done.stderr
    kernels = list(tmp_path.rglob("*.nbc"))
    slow = [kernel.name for kernel in kernels if b"raise_with_shape" in kernel.read_bytes()]
    assert kernels and not slow, (
        "the message of an error in assigning slices takes two seconds to compile: use copy_into"
    )


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [("callee.py", "return x + 1", "return x + 2"), ("constants.py", "STEP = 10", "STEP = 11")],
)
def test_a_kernel_is_compiled_again_when_a_module_that_it_uses_has_changed(tmp_path, file, before, after):
    """Numba looks at the file of the kernel only: after an upgrade, a kernel with old callees inside would work on the
    new layout of the data, write beyond it, and search tables without an end."""
    package = tmp_path / "package"
    package.mkdir()
    decorator = "from treemax.kernels.jit import kernel\n"
    sources = {
        "__init__.py": "",
        "constants.py": "STEP = 10\n",
        "callee.py": f"{decorator}from package.constants import (\n    STEP,\n)\n@kernel\ndef add(x):\n    return x + 1 + STEP\n",
        "caller.py": f"{decorator}from package import callee\n@kernel\ndef add_twice(x):\n    return callee.add(callee.add(x))\n",
    }
    for name, source in sources.items():
        (package / name).write_text(source)
    program = "from package.caller import add_twice; print(add_twice(0), sum(add_twice.stats.cache_hits.values()))"
    assert [printed(program, tmp_path), printed(program, tmp_path)] == ["22 0", "22 1"]
    (package / file).write_text(sources[file].replace(before, after))
    assert [printed(program, tmp_path), printed(program, tmp_path)] == ["24 0", "24 1"]


def printed(program, folder):
    """Run a program in a folder that also has the cache of its kernels."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_kernel_is_compiled_again_when_a_type_of_its_arguments_was_renamed(tmp_path):
    """Numba's cache names the types of arguments, which may not exist any more after an upgrade."""
    source = (
        "from typing import NamedTuple\nfrom treemax.kernels.jit import kernel\nclass Pair(NamedTuple):\n"
        "    one: int\n    two: int\n@kernel\ndef add(pair):\n    return pair.one + pair.two\n"
    )
    for name in ("Pair", "Couple"):
        (tmp_path / "module.py").write_text(source.replace("Pair", name))
        program = f"from module import add, {name}; print(add({name}(1, 2)), sum(add.stats.cache_hits.values()))"
        assert [printed(program, tmp_path), printed(program, tmp_path)] == ["3 0", "3 1"]


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("size", [0, 60])
def test_a_kernel_whose_file_in_the_cache_is_not_whole_is_compiled_again(tmp_path, ending, size):
    """Files are cut off if the machine loses power. The kernel inside has a cache of another kind."""
    source = (
        "from treemax.kernels.jit import kernel\n@kernel\ndef _add(x):\n    return x + 1\n"
        "@kernel\ndef add(x):\n    return _add(x)\n"
    )
    (tmp_path / "module.py").write_text(source)
    program = "from module import add, _add; print(add(1), sum(add.stats.cache_hits.values()), sum(_add.stats.cache_hits.values()))"
    assert printed(program, tmp_path) == "2 0 0"
    for file in (tmp_path / "cache").rglob(f"module.*.{ending}"):
        os.truncate(file, size)
    assert [printed(program, tmp_path), printed(program, tmp_path)] == ["2 0 0", "2 1 0"]
    next((tmp_path / "cache").rglob("module.add-*.nbi")).unlink()
    assert printed(program, tmp_path) == "2 0 1", "the other one was repaired too"


def test_a_kernel_that_cannot_be_saved_is_used_all_the_same(tmp_path, monkeypatch, caplog):
    """The disk may be full, or a quota."""
    (tmp_path / "not_saved.py").write_text(
        "from treemax.kernels.jit import kernel\n@kernel\ndef add(x):\n    return x + 1\n"
        "@kernel\ndef subtract(x):\n    return x - 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jit._compilations, "failed_to_save", False)
    module = importlib.import_module("not_saved")

    def fail(path, mode):
        if mode == "rb":
            return Path(path).open(mode)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.open", fail, raising=False)
    assert module.add(1) == 2 and module.subtract(1) == 0
    warnings = [message for message in caplog.messages if "cannot be saved" in message]
    assert len(warnings) == 1 and "No space left" in warnings[0] and "NUMBA_CACHE_DIR" in warnings[0]


@pytest.mark.slow
def test_kernels_just_compiled_give_the_bits_of_those_from_the_cache(tmp_path):
    """A kernel that is compiled may use other versions of the kernels it calls than one that comes from the cache does,
    unless they are part of it: the first training on a machine, or a worker's, would differ from the next."""
    program = """
import hashlib, sys
from pathlib import Path
from tests.parallel.node_by_node import MODELS, clone, model_bytes, problem
for sparse in (False, True):
    for model in MODELS[2:4]:
        print(hashlib.sha256(model_bytes(clone(model).fit(*problem(sparse=sparse)), Path(sys.argv[1]))).hexdigest())
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    found = [
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "model")],
            env=environment, capture_output=True, text=True, check=True,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert len(found[0].split()) == 4 and found[0] == found[1]


@pytest.mark.slow
def test_kernels_whose_callees_were_cached_give_the_bits_of_those_compiled_together(tmp_path):
    """LLVM optimises what it has just compiled in another order than what was loaded: only the former knows all uses."""
    program = """
from tests.fuzz.saved_models import KINDS
make, X, y = KINDS["one-vs-all, sparse, several labels"]
print(make().fit(X, y).predict_proba(X).tobytes().hex())
"""
    together = printed(program, tmp_path)
    for file in (tmp_path / "cache").rglob("*.nb?"):
        if "._" not in file.name:  # not only called by other kernels
            file.unlink()
    assert len(together) > 1000 and printed(program, tmp_path) == together


ROOT = Path(__file__).parents[2]
FILES = [
    file
    for folder in ("src/treemax", "tests", "benchmarks")
    for file in sorted((ROOT / folder).rglob("*.py"))
    if not any(part.startswith(".") for part in file.relative_to(ROOT).parts)  # environments of peers
]


def test_all_imports_of_a_kernel_are_seen():
    """They are read from the source by a short expression, not by a parser, which would take longer than the imports."""
    for file in FILES:
        source = file.read_text()
        if "\nfrom treemax.kernels.jit import" not in source or "src" not in file.relative_to(ROOT).parts:
            continue
        name = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)
        importlib.import_module(name)
        expected = set()
        for node in ast.parse(source).body:
            assert not isinstance(node, ast.Import) or "treemax" not in {
                alias.name.split(".")[0] for alias in node.names
            }
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "treemax":
                expected |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)} & sys.modules.keys()
        assert "treemax.kernels.jit" in expected and set(jit._imports(source, "treemax")) == expected, file


def decorators(function):
    return [node.id for node in ast.walk(ast.Module(function.decorator_list, [])) if isinstance(node, ast.Name)]


def inner_kernels(tree):
    """The names of the kernels of a module that have no wrapper for calls from Python."""
    found = set()
    for node in tree.body:
        names = decorators(node) if isinstance(node, ast.FunctionDef) else []
        if any(name.endswith("kernel") and ("inline" in name or node.name.startswith("_")) for name in names):
            found.add(node.name)
    return found


@pytest.mark.slow
def test_python_calls_no_inner_kernel():
    """Such a call would be a segmentation fault: those kernels are compiled for calls from other kernels only."""
    trees = {file: ast.parse(file.read_text()) for file in FILES}
    modules = {
        ".".join(file.relative_to(ROOT / "src").with_suffix("").parts): inner_kernels(tree)
        for file, tree in trees.items()
        if "src" in file.relative_to(ROOT).parts
    }
    assert sum(map(len, modules.values())) > 50
    for file, tree in trees.items():
        forbidden = {(None, name) for name in inner_kernels(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    name = alias.asname or alias.name
                    if alias.name in modules.get(node.module, ()):
                        forbidden.add((None, name))
                    forbidden |= {(name, inner) for inner in modules.get(f"{node.module}.{alias.name}", ())}
        for target in python_calls(tree):
            called = (None, target.id) if isinstance(target, ast.Name) else (target.value.id, target.attr)
            assert called not in forbidden, f"{file}:{target.lineno} calls {called[1]}, a kernel for kernels only"


def python_calls(node):
    """What the code outside of kernels calls: names, and attributes of names."""
    if isinstance(node, ast.FunctionDef):
        compiled = ("kernel", "overload", "intrinsic", "njit")
        if any(name.endswith(compiled) for name in decorators(node)):
            return
    if isinstance(node, ast.Call):
        target = node.func
        if isinstance(target, ast.Name) or (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)):
            yield target
    for child in ast.iter_child_nodes(node):
        yield from python_calls(child)


@pytest.mark.parametrize("version", [(0, 62, 0), (0, 68, 1), (9, 0, 0)])
def test_internals_of_numba_are_used_where_they_were_tested(version, monkeypatch, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(numba, "version_info", version)
    used, pipelines = [], jit._KernelCompiler.define_pipelines
    monkeypatch.setattr(jit._KernelCompiler, "define_pipelines", lambda self: used.append(self) or pipelines(self))

    @jit.kernel
    def doubled(x):
        return x + x

    assert doubled(21) == 42
    assert bool(used) == (jit.TESTED_NUMBA[0] <= version[:2] <= jit.TESTED_NUMBA[1])
