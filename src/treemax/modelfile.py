"""The model file: named arrays and a JSON header, without pickle, memory-mapped.

A `.treemax` file is a zip archive of uncompressed `.npy` members after a `header.json`. Its structure is a function
of the header alone: the reader computes the layout from the header and compares every structural byte with the file.
So no offset of the file is trusted, and a file is either exactly what `write_model` would have written or invalid.

`write_model` and `read_model` handle arrays. `save` and `load` handle objects: a class registers with `@saveable` and
converts itself to parts (`to_parts`) and back (`from_parts`). docs/model-file.md describes the format for readers in
other languages.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import stat
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from treemax.replacing import remove_stale, replacing
from treemax.zip_layout import HEADER_MEMBER, ArraySpec, Layout, next_member

FORMAT_VERSION = 1
MAGIC = "treemax"
VERIFY_UP_TO = 64 * 2**20  # size of files whose arrays are verified by default
MAX_HEADER_BYTES = 64 * 2**20
LARGEST = 1e30  # number in a model: products of larger ones overflow float32
SUMS = ("squares", "square", "cells")  # arrays with AdaGrad's sums, which may be larger

HEADER_START = 128  # offset of the JSON in every version of the format
_CHUNK = 16 * 2**20
_DTYPES = ("|b1", "|i1", "|u1", *(f"<{kind}{size}" for kind in "iu" for size in (2, 4, 8)))
_DTYPES += ("<f2", "<f4", "<f8", "<c8", "<c16")
_NAME = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")
_MAX_NAME = 500
_MAX_DIMENSIONS = 32
_MAX_EXTENT = 2**62  # in bytes, with dimensions of zero counted as one: NumPy's limit

Arrays = dict[str, NDArray[Any]]
AnyPath = str | os.PathLike[str]


class ModelFileError(ValueError):
    """A model file cannot be read, or a model cannot be saved."""


# --- writing -------------------------------------------------------------------------------------------


def write_model(path: AnyPath, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write a JSON-serialisable `header` and named `arrays` to one file, atomically.

    The file appears under its name once complete and on disk; after an error, the previous file is unchanged. Arrays
    are little-endian numbers or booleans; arrays that are only Fortran-contiguous keep that order, all others are
    stored in C order. Names may have parts: `estimator/weights`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "small.treemax"
    ...     write_model(path, {"depth": 3}, {"node/weights": np.arange(4.0)})
    ...     header, arrays = read_model(path)
    >>> header, arrays["node/weights"].tolist()
    ({'depth': 3}, [0.0, 1.0, 2.0, 3.0])
    """
    with replacing(path, _check_written) as file:
        _write(file, header, arrays)


def _write(file: BinaryIO, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    content, stored, specs, header_size = _planned(header, arrays)
    layout = Layout(header_size, 0, specs)
    offsets = layout.offsets
    file.truncate(layout.file_size)  # so that an error can state the space needed
    specs = [_write_array(file, offset, spec, array) for offset, spec, array in zip(offsets, specs, stored.values())]
    text = _header_text(content, specs, offsets).ljust(header_size)
    _write_at(file, HEADER_START, text)
    for position, piece in Layout(header_size, zlib.crc32(text), specs).structure():
        _write_at(file, position, piece)


def _planned(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> tuple[Any, Arrays, list[ArraySpec], int]:
    """Return the JSON-compatible header, the arrays, their specifications and the size of the header."""
    content = _plain(dict(header), "header")
    stored = {name: np.asarray(array) for name, array in arrays.items()}
    specs = [_spec(name, array) for name, array in stored.items()]
    header_size = len(_header_text(content, specs, [10**19] * len(specs)))
    if header_size > MAX_HEADER_BYTES:
        raise ModelFileError(
            f"The header takes {header_size:,} bytes, more than {MAX_HEADER_BYTES:,}: put large data into arrays."
        )
    return content, stored, specs, header_size


def _spec(name: str, array: NDArray[Any]) -> ArraySpec:
    _check_name(name)
    if array.dtype.hasobject:
        raise ModelFileError(f"Array {name!r} holds Python objects; a model file takes numbers only.")
    dtype = array.dtype.newbyteorder("<").str
    if dtype not in _DTYPES:
        raise ModelFileError(
            f"Array {name!r} has dtype {array.dtype}; a model file takes booleans, integers, floats and complex "
            "numbers of up to 8 bytes a part. Store text as UTF-8 bytes and offsets."
        )
    return ArraySpec(name, dtype, array.shape, array.flags.f_contiguous and not array.flags.c_contiguous)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise ModelFileError(
            f"{name!r:.200} cannot name an array: use letters, digits, '_' and '-', with '/' between the parts of a "
            f"name, and at most {_MAX_NAME} characters."
        )


def _header_text(content: Any, specs: list[ArraySpec], offsets: list[int]) -> bytes:
    from treemax import __version__  # circular import

    whole = {
        "magic": MAGIC,
        "format_version": FORMAT_VERSION,
        "library_version": __version__,
        "header": content,
        "arrays": [_described(spec, offset) for spec, offset in zip(specs, offsets)],
    }
    return json.dumps(whole, allow_nan=False).encode("ascii")


def _described(spec: ArraySpec, offset: int) -> dict[str, Any]:
    return {
        "name": spec.name,
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "fortran_order": spec.fortran_order,
        "offset": offset,
        "bytes": spec.n_bytes,
        "crc32": spec.crc32,
    }


def _plain(value: Any, where: str) -> Any:
    """Convert NumPy scalars and tuples to JSON types; raises for values that JSON cannot represent."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if where.count("[") > 50:
        raise ModelFileError(f"{where[:100]}... is nested too deeply to be saved.")
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    raise ModelFileError(
        f"{where} is {value!r:.200} ({type(value).__name__}), which cannot be saved: a header holds None, booleans, "
        "strings, finite numbers of up to 64 bits, and lists and string-keyed dictionaries of them."
    )


def _write_array(file: BinaryIO, offset: int, spec: ArraySpec, array: NDArray[Any]) -> ArraySpec:
    """Write the data of an array; return its specification with the checksum."""
    ordered = array.T if spec.fortran_order else array
    content: Any = np.ascontiguousarray(ordered, dtype=spec.dtype).reshape(-1).view(np.uint8)
    crc32 = zlib.crc32(spec.npy_header())
    file.seek(offset)
    for start in range(0, len(content), _CHUNK):
        chunk = content[start : start + _CHUNK]
        crc32 = zlib.crc32(chunk, crc32)
        file.write(chunk)
    return replace(spec, crc32=crc32)


def _write_at(file: BinaryIO, position: int, piece: bytes) -> None:
    file.seek(position)
    file.write(piece)


def _check_written(temporary: Path, target: Path) -> None:
    """Verify the file written before it replaces the previous one."""
    try:
        read_model(temporary, verify=True)
    except ModelFileError as error:
        raise ModelFileError(
            f"{target} was not saved, and the previous file is unchanged: the file written differs from the model. The "
            f"disk or the memory may be faulty, or a thread changed the arrays. Save it again. ({error})"
        ) from error


# --- reading -------------------------------------------------------------------------------------------


def read_model(path: AnyPath, verify: bool | None = None) -> tuple[dict[str, Any], Arrays]:
    """Read the header and the arrays of a model file; the arrays are read-only and memory-mapped.

    The header and the structure of the file are always verified. The checksums of the arrays are verified in files of
    up to 64 MB; for larger files, which otherwise open in milliseconds, only with `verify=True`. `verify=False` never
    reads the arrays. An invalid file raises `ModelFileError`, a missing one `FileNotFoundError` and an unreadable one
    `PermissionError`.
    """
    mapped = _mapped(path)
    try:
        whole, header_size, header_crc32 = _read_header(mapped)
        specs = _read_specs(whole)
        layout = Layout(header_size, header_crc32, specs)
        _check_structure(mapped, layout, whole["arrays"])
        views = [_view(mapped, offset, spec) for offset, spec in zip(layout.offsets, specs)]
        if verify or (verify is None and len(mapped) <= VERIFY_UP_TO):
            for offset, spec in zip(layout.offsets, specs):
                _verify_content(mapped, offset, spec)
    except ModelFileError as error:
        raise ModelFileError(f"{os.fspath(path)}: {error}") from error.__cause__
    return whole["header"], {spec.name: view for spec, view in zip(specs, views)}


def read_header(path: AnyPath) -> dict[str, Any]:
    """Read the JSON of a model file: `format_version`, `library_version`, `header` and `arrays`."""
    mapped = _mapped(path)
    try:
        whole, _, _ = _read_header(mapped)
        _read_specs(whole)
    except ModelFileError as error:
        raise ModelFileError(f"{os.fspath(path)}: {error}") from error.__cause__
    return whole


def _mapped(path: AnyPath) -> mmap.mmap:
    mode = Path(path).stat().st_mode  # before opening: opening a pipe would block
    if stat.S_ISDIR(mode):
        raise ModelFileError(f"{os.fspath(path)}: is a folder, not a Treemax model.")
    if not stat.S_ISREG(mode):
        raise ModelFileError(f"{os.fspath(path)}: is not a regular file.")
    with Path(path).open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise ModelFileError(f"{os.fspath(path)}: is empty, not a Treemax model.")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _read_header(mapped: mmap.mmap) -> tuple[dict[str, Any], int, int]:
    """Verify the start of the file; return the parsed header, its size and its checksum."""
    start = mapped[:HEADER_START]
    size, crc32 = _header_size_and_crc32(start.ljust(HEADER_START, b"\0"))
    expected = next_member(HEADER_MEMBER, 0, size, crc32).local_header()
    if start != expected:
        _refuse_start(start, expected)
    if size > MAX_HEADER_BYTES:
        raise ModelFileError(f"is damaged: its header claims {size:,} bytes.")
    text = mapped[HEADER_START : HEADER_START + size]
    if len(text) < size:
        raise ModelFileError("is truncated: the file ends within its header.")
    if zlib.crc32(text) != crc32:
        raise ModelFileError("is damaged: the checksum of its header does not match.")
    try:
        whole = json.loads(text.decode("ascii"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ModelFileError("is damaged: its header is not valid JSON.") from error
    if not isinstance(whole, dict) or whole.get("magic") != MAGIC:
        raise ModelFileError("is not a Treemax model: its header.json belongs to something else.")
    _check_version(whole)
    return whole, size, crc32


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _header_size_and_crc32(start: bytes) -> tuple[int, int]:
    return struct.unpack_from("<Q", start, 45)[0], struct.unpack_from("<I", start, 14)[0]


def _refuse_start(start: bytes, expected: bytes) -> None:
    ours = 30 + len(HEADER_MEMBER)
    if start[30:ours] == expected[30:ours] or expected.startswith(start):
        what = "truncated" if len(start) < HEADER_START else "damaged, or was repacked by another program"
        raise ModelFileError(f"is {what}: its first {HEADER_START} bytes are not those of a Treemax model.")
    if start[:4] == b"PK\x03\x04":
        name = start[30 : 30 + int.from_bytes(start[26:28], "little")].decode("utf-8", "replace")
        raise ModelFileError(f"is a zip archive but not a Treemax model: it begins with {name!r}.")
    if start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05":
        raise ModelFileError("is not a Treemax model but seems to be a pickle, which Treemax never loads.")
    if start[:2] == b"\x1f\x8b":
        raise ModelFileError("is compressed with gzip: decompress it first, model files are memory-mapped.")
    raise ModelFileError(f"is not a Treemax model: it begins with {start[:8]!r}.")


def _check_version(whole: dict[str, Any]) -> None:
    version = whole.get("format_version")
    if type(version) is not int or version < 1:
        raise ModelFileError(f"is damaged: its format version is {version!r:.100}.")
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"has format version {version}, written by Treemax {whole.get('library_version')!r:.100}; this Treemax "
            f"reads versions up to {FORMAT_VERSION}. Upgrade Treemax to read it."
        )


def _read_specs(whole: dict[str, Any]) -> list[ArraySpec]:
    if not isinstance(whole.get("header"), dict) or not isinstance(whole.get("arrays"), list):
        raise ModelFileError("is damaged: its header lacks 'header' or 'arrays'.")
    specs = [_read_spec(entry) for entry in whole["arrays"]]
    names = {spec.name for spec in specs}
    if len(names) < len(specs):
        raise ModelFileError("is damaged: two arrays have the same name.")
    return specs


def _read_spec(entry: Any) -> ArraySpec:
    if not isinstance(entry, dict):
        raise ModelFileError("is damaged: an array is not described by an object.")
    name, dtype, shape = str(entry.get("name")), entry.get("dtype"), entry.get("shape")
    fortran_order, crc32 = entry.get("fortran_order"), entry.get("crc32")
    _check_name(name)
    if dtype not in _DTYPES:
        raise ModelFileError(f"is damaged: array {name!r} has the unknown dtype {dtype!r:.100}.")
    if not isinstance(shape, list) or not _possible_shape(shape, np.dtype(dtype).itemsize):
        raise ModelFileError(f"is damaged: array {name!r} has the impossible shape {shape!r:.200}.")
    if type(fortran_order) is not bool or type(crc32) is not int or not 0 <= crc32 < 2**32:
        raise ModelFileError(f"is damaged: the description of array {name!r} is incomplete.")
    return ArraySpec(name, dtype, tuple(shape), fortran_order, crc32)


def _possible_shape(shape: list[Any], item_size: int) -> bool:
    if len(shape) > _MAX_DIMENSIONS or not all(type(n) is int and 0 <= n <= _MAX_EXTENT for n in shape):
        return False
    return math.prod(n or 1 for n in shape) * item_size <= _MAX_EXTENT


def _check_structure(mapped: mmap.mmap, layout: Layout, entries: list[dict[str, Any]]) -> None:
    """Raise unless every offset and size in the file follows from the header."""
    size = len(mapped)
    if size < layout.file_size:
        raise ModelFileError(f"is truncated: it has {size:,} of its {layout.file_size:,} bytes.")
    if size > layout.file_size:
        raise ModelFileError(f"is damaged: {size - layout.file_size:,} bytes follow its end.")
    for offset, npy_header, member, entry in zip(layout.offsets, layout.npy_headers, layout.members[1:], entries):
        if entry.get("offset") != offset or entry.get("bytes") != member.size - len(npy_header[1]):
            raise ModelFileError(f"is damaged: array {entry['name']!r} is not at the offset in its header.")
    for position, piece in layout.structure():
        if mapped[position : position + len(piece)] != piece:
            raise ModelFileError(f"is damaged near byte {position:,}: the archive does not match its header.")


def _view(mapped: mmap.mmap, offset: int, spec: ArraySpec) -> NDArray[Any]:
    order: Any = "F" if spec.fortran_order else "C"
    try:
        return np.ndarray(spec.shape, spec.dtype, buffer=mapped, offset=offset, order=order)
    except (ValueError, TypeError) as error:
        raise ModelFileError(f"is damaged: array {spec.name!r} cannot be created ({error}).") from error


def _verify_content(mapped: mmap.mmap, offset: int, spec: ArraySpec) -> None:
    crc32 = zlib.crc32(spec.npy_header())
    content = memoryview(mapped)[offset : offset + spec.n_bytes]
    for start in range(0, len(content), _CHUNK):
        crc32 = zlib.crc32(content[start : start + _CHUNK], crc32)
    if crc32 != spec.crc32:
        raise ModelFileError(f"is damaged: the checksum of array {spec.name!r} does not match.")


# --- objects -------------------------------------------------------------------------------------------


class Saveable(Protocol):
    """An object that converts to a JSON-serialisable header and arrays, and back."""

    def to_parts(self, **options: Any) -> tuple[dict[str, Any], Arrays]: ...

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: Arrays) -> Any: ...


SaveableClass = TypeVar("SaveableClass", bound=type)
Result = TypeVar("Result")
_CLASSES: dict[str, Any] = {}
_SAVED_BY: dict[type, tuple[str, Any]] = {}  # classes of other libraries


def saveable(cls: SaveableClass) -> SaveableClass:
    """Register a class with `to_parts` and `from_parts` for `save` and `load`, by its name.

    `to_parts` returns a dictionary that JSON can hold and a dictionary of numeric arrays. Any exception of `from_parts`
    becomes a `ModelFileError`.

    Examples
    --------
    >>> @saveable
    ... class Popular:
    ...     def __init__(self, counts):
    ...         self.counts = counts
    ...
    ...     def to_parts(self):
    ...         return {}, {"counts": self.counts}
    ...
    ...     @classmethod
    ...     def from_parts(cls, header, arrays):
    ...         return cls(arrays["counts"])
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Popular(np.array([3, 1, 2])), f"{folder}/popular.treemax")
    ...     load(f"{folder}/popular.treemax").counts.tolist()
    [3, 1, 2]
    """
    known = _CLASSES.get(cls.__name__)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(
            f"Two saveable classes are called {cls.__name__}: {known.__module__}.{known.__qualname__} and "
            f"{cls.__module__}.{cls.__qualname__}. Model files refer to classes by name: rename one of them."
        )
    _CLASSES[cls.__name__] = cls
    return cls


def saved_by(adapter: Any, cls: type, name: str) -> None:
    """Register a class of another library under a name, with an adapter: `to_parts(thing)` and `from_parts`."""
    _SAVED_BY[cls] = name, adapter
    _CLASSES[name] = adapter


def object_parts(thing: Saveable, **options: Any) -> tuple[dict[str, Any], Arrays]:
    """Return the header, with the name of the class, and the arrays of an object.

    `options` are passed to `to_parts`.
    """
    name = type(thing).__name__
    if type(thing) in _SAVED_BY:
        known, adapter = _SAVED_BY[type(thing)]
        state, arrays = adapter.to_parts(thing)
        return {"class": known, "state": state}, arrays
    if _CLASSES.get(name) is not type(thing):
        others = ", ".join(cls.__name__ for cls in _SAVED_BY)
        raise ModelFileError(
            f"A {name} cannot be saved in a model file: its class is not registered with @saveable"
            + (f", and is none of those of scikit-learn that are known: {others}." if others else ".")
        )
    state, arrays = thing.to_parts(**options)
    return {"class": name, "state": state}, arrays


def object_from_parts(header: dict[str, Any], arrays: Arrays) -> Any:
    """Restore an object from the result of `object_parts`."""
    name, state = header.get("class"), header.get("state")
    if not isinstance(name, str) or not isinstance(state, dict):
        raise ModelFileError("has arrays, but no object of a saveable class: use read_model.")
    cls: Any = _CLASSES.get(name)
    if cls is None:
        raise ModelFileError(
            f"has an object of the unknown class {name!r:.100}: it was written by a newer Treemax or by an "
            "extension that is not imported."
        )
    try:
        return cls.from_parts(state, arrays)
    except ModelFileError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ModelFileError(
            f"is damaged: its parts are not those of a {name} ({type(error).__name__}: {error})."
        ) from error


def save(thing: Saveable, path: AnyPath, **options: Any) -> None:
    """Save an object of a saveable class to one file, atomically; see `write_model`.

    `options` are passed to `to_parts`. An object shared with other threads is locked against changes while it is
    written.
    """
    with replacing(path, _check_written) as file:
        without_changes(thing, lambda thing: _write(file, *object_parts(thing, **options)))


def saved_bytes(thing: Saveable, **options: Any) -> int:
    """Return the size of the file that `save` would write."""
    _, _, specs, header_size = without_changes(thing, lambda thing: _planned(*object_parts(thing, **options)))
    return Layout(header_size, 0, specs).file_size


def without_changes(thing: Any, work: Callable[[Any], Result]) -> Result:
    """Call `work` with the object, locked against changes by other threads."""
    waits = getattr(thing, "_with_snapshot", None)
    return work(thing) if waits is None else waits(work)


def load(path: AnyPath, verify: bool | None = None) -> Any:
    """Load an object saved by `save`; see `read_model` for `verify`."""
    header, arrays = read_checked(path, verify)
    remove_stale(Path(path).absolute().parent)
    try:
        return object_from_parts(header, arrays)
    except ModelFileError as error:
        raise ModelFileError(f"{os.fspath(path)}: {error}") from error.__cause__


def read_checked(path: AnyPath, verify: bool | None = None) -> tuple[dict[str, Any], Arrays]:
    """Read a model file as `read_model`; where contents are verified, raise also for numbers that no model has."""
    header, arrays = read_model(path, verify)
    if verify or (verify is None and Path(path).stat().st_size <= VERIFY_UP_TO):
        try:
            _check_numbers(arrays)
        except ModelFileError as error:
            raise ModelFileError(f"{os.fspath(path)}: {error}") from None
    return header, arrays


def _check_numbers(arrays: Arrays) -> None:
    """Raise for NaN, infinities and numbers that are too large; reads all arrays, as the checksums do."""
    for name, array in arrays.items():
        if array.dtype.kind != "f" or not array.size:
            continue
        if array.dtype.itemsize == 2:  # NumPy is slow with float16
            valid = not ((array.view(np.uint16) & 0x7C00) == 0x7C00).any()
        else:
            most = np.finfo(np.float32).max if name.endswith(SUMS) else LARGEST
            most = most if array.dtype.itemsize == 4 else math.inf  # float64 values may exceed float32
            valid = bool(array.min() >= -most and array.max() <= most)
        if not valid:
            raise ModelFileError(f"is damaged: array {name!r} has NaN, an infinity or a number beyond {LARGEST:g}.")


def prefixed(name: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Prefix the names of arrays with the name of their part.

    >>> sorted(prefixed("estimator", {"weights": np.ones(1), "bias": np.ones(1)}))
    ['estimator/bias', 'estimator/weights']
    """
    return {f"{name}/{key}": array for key, array in arrays.items()}


def part(name: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the arrays of a part with their own names, the inverse of `prefixed`."""
    start = name + "/"
    return {key[len(start) :]: array for key, array in arrays.items() if key.startswith(start)}
