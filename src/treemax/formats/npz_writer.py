"""Write NumPy archives in chunks; see `npz` for the arrays."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable
from typing import IO, Any, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from treemax.formats.examples import Examples
from treemax.formats.streams import append
from treemax.inputs.labels import RaggedLabels
from treemax.inputs.rows import SparseRows
from treemax.replacing import temporary_files


class _Spool:
    """An array written in pieces, kept in a temporary file until its length is known."""

    def __init__(self, dtype: Any, *axes: int) -> None:
        self._dtype = np.dtype(dtype)
        self._axes = axes
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self.count = 0

    def add(self, values: Any) -> None:
        array = np.ascontiguousarray(values, dtype=self._dtype)
        with temporary_files():
            self._file.write(array.tobytes())
        self.count += len(array)

    def write(self, archive: zipfile.ZipFile, name: str) -> None:
        """Write the array to the archive."""
        header = {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self.count, *self._axes)}
        # A fixed date, so that equal examples give equal files.
        member = zipfile.ZipInfo(name + ".npy", (1980, 1, 1, 0, 0, 0))
        with archive.open(member, "w", force_zip64=True) as stream:
            npy.write_array_header_1_0(stream, header)
            append(stream, self._file)
        self._file.close()


class _WriteOnly:
    """A stream without seek, so that files, pipes and gzip get the same bytes."""

    def __init__(self, target: IO[bytes]) -> None:
        self.write = target.write
        self.flush = target.flush


class _Ragged:
    """Entries of varying length, concatenated, and their offsets."""

    def __init__(self, dtype: Any) -> None:
        self.values = _Spool(dtype)
        self.starts = _Spool(np.int64)
        self.starts.add([0])

    def add(self, values: Any, counts: NDArray[np.int64]) -> None:
        self.starts.add(self.values.count + np.cumsum(counts))
        self.values.add(values)

    def add_strings(self, strings: list[str]) -> None:
        encoded = [text.encode("utf-8") for text in strings]
        self.add(
            np.frombuffer(b"".join(encoded), dtype=np.uint8), np.array([len(text) for text in encoded], dtype=np.int64)
        )


class _FeatureSpools:
    """The features of the chunks, in the form of the first chunk."""

    def __init__(self) -> None:
        self._dense: _Spool | None = None
        self._texts: _Ragged | None = None
        self._sparse: tuple[_Ragged, _Spool] | None = None
        self._width = 0

    def __bool__(self) -> bool:
        return any(form is not None for form in (self._dense, self._texts, self._sparse))

    def add(self, chunk: Examples) -> None:
        if chunk.texts is not None:
            self._texts = self._texts or _Ragged(np.uint8)
            self._texts.add_strings(chunk.texts)
        elif isinstance(chunk.rows, SparseRows):
            rows = chunk.rows
            part = slice(rows.indptr[0], rows.indptr[-1])
            values, indices = self._sparse = self._sparse or (_Ragged(np.float32), _Spool(np.int64))
            values.add(rows.values[part], np.diff(rows.indptr))
            indices.add(rows.indices[part])
            self._width = max(self._width, rows.n_features)
        else:
            assert chunk.rows is not None
            self._dense = self._dense or _Spool(np.float32, chunk.rows.shape[1])
            self._dense.add(chunk.rows)
        if sum(form is not None for form in (self._dense, self._texts, self._sparse)) > 1:
            raise ValueError("The chunks differ: all must have dense rows, all sparse rows, or all texts.")

    def write(self, archive: zipfile.ZipFile) -> None:
        if self._dense is not None:
            self._dense.write(archive, "X")
        elif self._texts is not None:
            self._texts.values.write(archive, "text_bytes")
            self._texts.starts.write(archive, "text_offsets")
        elif self._sparse is not None:
            values, indices = self._sparse
            shape = _Spool(np.int64)
            shape.add([values.starts.count - 1, self._width])
            values.values.write(archive, "data")
            indices.write(archive, "indices")
            values.starts.write(archive, "indptr")
            shape.write(archive, "shape")
            with archive.open(zipfile.ZipInfo("format.npy", (1980, 1, 1, 0, 0, 0)), "w") as stream:
                npy.write_array(stream, np.array(b"csr"), allow_pickle=False)


class _LabelSpools:
    """The labels of the chunks: integers, or strings as bytes."""

    def __init__(self) -> None:
        self._starts = _Spool(np.int64)
        self._starts.add([0])
        self._integers = _Spool(np.int64)
        self._strings = _Ragged(np.uint8)
        self._one_each = True

    def add(self, labels: RaggedLabels) -> None:
        values = labels.values[labels.indptr[0] : labels.indptr[-1]]
        n_strings = self._strings.starts.count - 1
        self._starts.add(self._integers.count + n_strings + np.cumsum(labels.counts))
        self._one_each &= bool((labels.counts == 1).all())
        if len(values) and labels.dtype.kind in "UO":
            self._strings.add_strings(values.tolist())
        else:
            self._integers.add(values)
        if self._integers.count and self._strings.starts.count > 1:
            raise ValueError("The chunks differ: some have integer labels, some have strings.")

    def write(self, archive: zipfile.ZipFile) -> None:
        if self._strings.starts.count > 1:
            self._strings.values.write(archive, "y_bytes")
            self._strings.starts.write(archive, "y_offsets")
        else:
            self._integers.write(archive, "y" if self._one_each else "y_values")
        if not self._one_each:
            self._starts.write(archive, "y_indptr")


def write_npz(chunks: Iterable[Examples], target: IO[bytes]) -> None:
    """Write an uncompressed archive; arrays are kept in temporary files until their lengths are known."""
    features, labels = _FeatureSpools(), _LabelSpools()
    for chunk in chunks:
        features.add(chunk)
        labels.add(chunk.labels)
    if not features:
        raise ValueError("There are no examples to write: the npz format needs at least an empty chunk.")
    with zipfile.ZipFile(cast(Any, _WriteOnly(target)), "w", zipfile.ZIP_STORED) as archive:
        features.write(archive)
        labels.write(archive)
