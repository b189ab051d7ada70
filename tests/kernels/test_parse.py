"""The byte parser: numbers to the last bit, hashes, and no access outside the arrays.

`_murmur` is compared with scikit-learn's hash function for all lengths, which no public function allows.
"""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treemax.formats.blocks import BlockParser, Limits
from treemax.formats.errors import BadLines
from treemax.kernels.jit import kernel
from treemax.kernels.parse import _murmur

PARSER = BlockParser(Limits(-(2**62), 2**62, 0, 2**32 - 1), keep_blank=False)


def parse(*lines: str):
    block = np.frombuffer(bytearray(("\n".join(lines) + "\n").encode()), dtype=np.uint8)
    return PARSER.parse(block, 1, BadLines("test", skip=False))


def values_of(texts: list[str]) -> np.ndarray:
    return parse(" ".join(["1", *(f"{i}:{text}" for i, text in enumerate(texts))])).values


def expected_of(texts: list[str]) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.array([float(text) for text in texts]).astype(np.float32)


def assert_exact(texts: list[str]) -> None:
    got, expected = values_of(texts), expected_of(texts)
    differs = np.flatnonzero(got.view(np.uint32) != expected.view(np.uint32))
    assert not len(differs), (texts[differs[0]], got[differs[0]], expected[differs[0]])


@pytest.mark.parametrize("format", ["%r", "%.17g", "%.9g", "%.6f", "%.25f", "%.3e", "%.20e", "%d"])
def test_numbers_of_every_size(format):
    rng = np.random.default_rng(3)
    values = rng.normal(size=3000) * 10.0 ** rng.uniform(-48, 38, 3000)
    texts = [format % value for value in values.tolist() if abs(value) < 3e38]
    assert_exact([text[:300] for text in texts])


def test_numbers_in_odd_dress():
    texts = ["0", "-0", "+1", ".5", "5.", "-.5e-3", "1E+2", "007", "0.0000000000000000000000000000000000001"]
    texts += ["1e-400", "0e999999999999999999", "1" + "0" * 38, "0." + "0" * 60 + "1e61", "1" * 30 + "e-10"]
    texts += ["1e-45", "7e-46", "7.1e-46", "1.1754943508222875e-38", "3.4028234663852886e38", "3.40282356e38"]
    texts += ["16777217", "16777219", "33554434.0000000000000001", "9007199254740993", "8388608.5"]
    assert_exact(texts)
    assert np.signbit(values_of(["-0"]))[0]


def decimal(value: Fraction) -> str:
    """A fraction whose denominator is a power of two, in full."""
    shift = value.denominator.bit_length() - 1
    digits = str(value.numerator * 5**shift).rjust(shift + 1, "0")
    return f"{digits[: len(digits) - shift]}.{digits[len(digits) - shift :]}"


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 2**31 - 2**24), st.sampled_from([-1, 0, 1]), st.integers(1, 40))
def test_numbers_half_way_between_two(bits, side, places):
    """The hardest case: a float32 midpoint, or a hair off it. Here the kernel has to ask."""
    bits = min(bits, 0x7F7FFFFE)
    low, high = np.array([bits, bits + 1], dtype=np.uint32).view(np.float32)
    middle = (Fraction(float(low)) + Fraction(float(high))) / 2
    nudge = Fraction(side, 10**places) if side else 0
    texts = [decimal(middle)]
    if nudge and middle > 1:
        texts.append(f"{decimal(middle)}{'0' * places}1" if side > 0 else decimal(middle)[:-1] or "0")
    assert_exact(texts)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.from_regex(r"\A[+-]?([0-9]{1,25}(\.[0-9]{0,25})?|\.[0-9]{1,25})([eE][+-]?[0-9]{1,2})?\Z"))
def test_any_number(text):
    if np.isfinite(expected_of([text]))[0]:
        assert_exact([text])


def test_many_questions_at_once():
    """More doubtful numbers than are asked about in one go, some of them too large."""
    middle = decimal(Fraction(2**24 * 2 + 1, 2) + Fraction(1, 2**40))
    texts = [middle] * 9000
    assert_exact(texts)
    block = " ".join(f"{i}:340282356779733661637539395458142568447.99999999999999999999" for i in range(10))
    bad = BadLines("test", skip=True)
    lines = "\n".join([f"1 {block}", f"2 0:{middle}", "3 0:1\n"])
    parsed = PARSER.parse(np.frombuffer(bytearray(lines.encode()), dtype=np.uint8), 1, bad)
    assert (parsed.labels.tolist(), bad.count) == ([2, 3], 1)
    assert parsed.values[0] == expected_of([middle])[0]


@given(st.lists(st.integers(-(10**18) + 1, 10**18 - 1), min_size=1, max_size=5))
def test_any_label(labels):
    assert parse(",".join(map(str, labels)) + " 0:1").labels.tolist() == labels


@pytest.mark.parametrize(
    ("text", "label"), [("1.0", 1), ("-3.", -3), ("1e3", 1000), ("1.50e1", 15), ("0.0", 0), ("120e-1", 12), ("+7", 7)]
)
def test_labels_written_as_floats(text, label):
    assert parse(f"{text} 0:1").labels.tolist() == [label]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(-9, 9)), max_size=120))
def test_rows_are_sorted_and_added_up(pairs):
    parsed = parse("1 " + " ".join(f"{index}:{value}" for index, value in pairs))
    totals: dict[int, int] = {}
    for index, value in pairs:
        totals[index] = totals.get(index, 0) + value
    assert parsed.indices.tolist() == sorted(totals)
    assert parsed.values.tolist() == [totals[index] for index in sorted(totals)]


@pytest.mark.parametrize(
    ("data", "seed", "digest"),
    [
        (b"", 0, 0x00000000),
        (b"", 1, 0x514E28B7),
        (b"", 0xFFFFFFFF, 0x81F16F39),
        (b"\xff\xff\xff\xff", 0, 0x76293B50),
        (b"\x21\x43\x65\x87", 0x5082EDEE, 0x2362F9DE),
        (b"\x21\x43\x65", 0, 0x7E4A8634),
        (b"\x21\x43", 0, 0xA0F7B07A),
        (b"\x21", 0, 0x72661CF4),
        (b"hello", 0, 0x248BFA47),
        (b"Hello, world!", 0x9747B28C, 0x24884CBA),
        (b"The quick brown fox jumps over the lazy dog", 0x9747B28C, 0x2FA826CD),
    ],
)
def test_murmur(data, seed, digest):
    assert murmur(np.frombuffer(data, dtype=np.uint8), np.uint32(seed)) == digest


@kernel
def murmur(data, seed):
    return _murmur(data, np.uint64(0), np.uint64(len(data)), seed)


CHECKED = """
import random, sys
from pathlib import Path
import numpy as np
from treemax.formats import FormatError, read_examples
from treemax.formats.blocks import BlockParser, Limits

try:  # a block without its last newline is outside the contract, and must be noticed here
    BlockParser(Limits(0, 9, 0, 9), keep_blank=True).parse(np.frombuffer(bytearray(b"1 0:1"), np.uint8), 1, None)
except IndexError:
    print("checked")

rng = random.Random(1)
path = Path(sys.argv[1])
lines = {
    "xmc": [b"1,2 0:0.5 3:1e-3", b" 2:1", b"", b"3", b"1 4:1 0:1 4:2"],
    "svmlight": [b"1,2 0:0.5 # x", b"qid:1 2:1", b"3 qid:4 7:1", b"1.0 9:12345678901234567890 1:1"],
    "vw": [b"1 |x a:2 b", b"1,2 1 't|x:2 a |y :1 12:3", b"cat | a", b"|"],
}
for _ in range(400):
    for format, good in lines.items():
        chosen = bytearray(b"\\n".join(rng.choices(good, k=rng.randrange(1, 6))))
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(chosen) + 1)
            chosen[at : at + rng.randrange(3)] = bytes([rng.choice(b"0123456789:,.|-e #\\n\\t\\x00\\xff")])
        header = b"%d 5 4\\n" % (chosen.count(b"\\n") + 1) if format == "xmc" else b""
        path.write_bytes(header + bytes(chosen) + rng.choice([b"", b"\\n"]))
        try:
            read_examples(path, format)
        except FormatError:
            pass
for format, tight in {"svmlight": b"1:1 " * 99, "xmc": b"\\n" * 99, "vw": b"| a b c d e f g " * 9}.items():
    header = b"99 5 4\\n" if format == "xmc" else b""
    path.write_bytes(header + tight)
    print(len(read_examples(path, format)))
"""


@pytest.mark.slow
def test_nothing_outside_the_arrays(tmp_path):
    """The same kernels with every access checked."""
    cache = os.environ.get("NUMBA_CACHE_DIR", str(tmp_path)) + "-checked"
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-c", CHECKED, str(tmp_path / "data")], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["checked", "1", "99", "1"]
