"""Vectors of sixteen numbers: what not every processor has instructions for."""

import os
import subprocess
import sys

import pytest

HALF_PRECISION = """
import numpy as np
from treemax.kernels import vector
from treemax.kernels.jit import kernel

@kernel
def widened(halves, out):
    for i in range(0, halves.size, 16):
        vector.store(out, np.uint64(i), vector.load_halves(halves, np.uint64(i)))

@kernel
def widened_one_by_one(halves, out):
    for i in range(halves.size):
        out[i] = vector.load_half(halves, np.uint64(i))

@kernel
def stored(values, dither, address, out):
    for i in range(0, values.size, 16):
        vector.store_halves_at(address, vector.load(values, np.uint64(i)), vector.splat(dither), np.uint64(16))
        for lane in range(16):
            out[i + lane] = vector.load_short_at(address + np.uint64(2 * lane))

halves = np.arange(2**16, dtype=np.uint16)
halves = halves[np.isfinite(halves.view(np.float16))]
exact = halves.view(np.float16).astype(np.float32)
for kernel in (widened, widened_one_by_one):
    out = np.empty(len(halves), np.float32)
    kernel(halves, out)
    assert out.tobytes() == exact.tobytes(), kernel

room = np.zeros(64, np.uint16)
address = np.uint64(room.ctypes.data + -room.ctypes.data % 32)
def store(values, dither=0):
    out = np.empty(len(values), np.uint16)
    stored(values, np.array(dither, np.uint32).view(np.float32)[()], address, out)
    return out
for dither in (0, 0x1FFF, 0xFFFFFFFF):
    assert store(exact, dither).tobytes() == halves.tobytes()  # a half-precision number stays what it is

random = np.random.RandomState(0)
values = np.exp(random.uniform(np.log(1e-4), np.log(6e4), 16000)).astype(np.float32) * random.choice((-1, 1), 16000)
values = values.astype(np.float32)
down, up = (store(values, dither).view(np.float16).astype(np.float32) for dither in (0, 0x1FFF))
assert (np.abs(down) <= np.abs(values)).all() and (np.abs(up) >= np.abs(values)).all()
assert (np.abs(up - down) <= np.abs(values) * 2**-10).all() and (np.sign(down) == np.sign(values)).all()
assert store(-values).tobytes() == (store(values) ^ 0x8000).astype(np.uint16).tobytes()
mean = np.mean([store(values, int(d)).view(np.float16).astype(np.float64) for d in np.linspace(0, 0x1FFF, 200)], axis=0)
assert (np.abs(mean - values) < 0.02 * 2**-10 * np.abs(values)).all()  # right on average
tiny = np.array([1e-9, -1e-9, 3e-8, 4e-8, 1e-6, -5e-5, 0.0, -0.0] * 2, np.float32)
assert np.abs(store(tiny).view(np.float16).astype(np.float32) - tiny).max() < 2**-24
print("compared", len(halves))
"""


CHOSEN_LANES = """
import numpy as np
from treemax.kernels import vector
from treemax.kernels.jit import kernel

@kernel
def chosen(values, bits, first, out, numbers):
    at = np.uint64(0)
    for i in range(bits.size):
        vector.store_chosen(out, at, vector.load(values, np.uint64(16 * i)), bits[i])
        vector.store_bit_numbers(numbers, at, first, bits[i])
        at += np.uint64(vector.count_bits(bits[i]))
    return at

random = np.random.RandomState(0)
bits = np.concatenate([[0, 1, 2**15, 2**16 - 1, 0], random.randint(0, 2**16, 1000)]).astype(np.uint32)
values = random.randn(16 * len(bits)).astype(np.float32)
is_set = (bits[:, None] >> np.arange(16, dtype=np.uint32)) & 1 == 1
out, numbers = np.empty(len(values) + 16, np.float32), np.empty(len(values) + 16, np.uint32)
n = chosen(values, bits, np.uint32(48), out, numbers)
assert n == is_set.sum()
assert out[:n].tobytes() == values.reshape(-1, 16)[is_set].tobytes()
assert (numbers[:n] == 48 + np.nonzero(is_set)[1]).all()
print("compared", len(bits))
"""


TOTALS = """
import numpy as np
from treemax.kernels import vector
from treemax.kernels.jit import kernel

@kernel
def totals(values, one_by_one, together):
    for i in range(values.size // 64):
        at, to = np.uint64(64 * i), np.uint64(4 * i)
        a, b = vector.load(values, at), vector.load(values, at + np.uint64(16))
        c, d = vector.load(values, at + np.uint64(32)), vector.load(values, at + np.uint64(48))
        vector.store_totals(together, to, a, b, c, d)
        for j, of in enumerate((a, b, c, d)):
            one_by_one[4 * i + j] = vector.total(of)

values = np.random.RandomState(0).randn(6400).astype(np.float32)
found = np.empty((2, 400), np.float32)
totals(values, *found)
assert found[0].tobytes() == found[1].tobytes()  # the same order of additions
np.testing.assert_allclose(found[1], values.reshape(-1, 16).astype(np.float64).sum(axis=1), atol=1e-5)
print("compared", found.shape[1])
"""


@pytest.mark.parametrize("processor", ["", "generic"])
@pytest.mark.parametrize(
    ("program", "printed"),
    [(HALF_PRECISION, "compared 63488\n"), (CHOSEN_LANES, "compared 1005\n"), (TOTALS, "compared 400\n")],
)
def test_results_are_those_of_numpy_on_every_processor(program, printed, processor, tmp_path):
    """Without instructions for half precision, such as on old or virtual processors, LLVM would abort the process."""
    environment = {**os.environ, "NUMBA_CPU_NAME": processor, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    if not processor:
        del environment["NUMBA_CPU_NAME"]
    path = tmp_path / "program.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, path], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == printed, done.stderr[-3000:]
