"""The layout of a model file: the zip archive that follows from the size of its header and from its arrays."""

from __future__ import annotations

import math
import stat
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

ALIGNMENT = 64  # in bytes, of every array: a cache line, and the widest vector register
HEADER_MEMBER = "header.json"


@dataclass(frozen=True)
class ArraySpec:
    """Description of an array in the header, which determines its position in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    fortran_order: bool
    crc32: int = 2**32 - 1  # of the whole member with its .npy header; a placeholder of maximal width until known

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def npy_header(self) -> bytes:
        """Return the .npy header, padded so that the array is aligned."""
        text = f"{{'descr': '{self.dtype}', 'fortran_order': {self.fortran_order}, 'shape': {self.shape}, }}"
        length = _aligned(10 + len(text) + 1) - 10
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", length) + text.ljust(length - 1).encode() + b"\n"


@dataclass(frozen=True)
class Member:
    """A member of the archive: the offsets of its local header and content, and its checksum."""

    name: str
    start: int
    content: int
    size: int
    crc32: int

    def local_header(self) -> bytes:
        name = self.name.encode()
        zip64 = struct.pack("<HHQQ", 1, 16, self.size, self.size)
        padding = self.content - self.start - 30 - len(name) - len(zip64) - 6
        align = struct.pack("<HHH", 0xD935, 2 + padding, ALIGNMENT) + bytes(padding)
        fixed = struct.pack("<I", 0x04034B50) + _common_fields(self.crc32)
        return fixed + struct.pack("<HH", len(name), len(zip64) + len(align)) + name + zip64 + align

    def central_entry(self) -> bytes:
        name = self.name.encode()
        zip64 = struct.pack("<HHQQQ", 1, 24, self.size, self.size, self.start)
        fixed = struct.pack("<IH", 0x02014B50, 3 << 8 | 45) + _common_fields(self.crc32)
        rest = struct.pack("<HHHHHII", len(name), len(zip64), 0, 0, 0, (stat.S_IFREG | 0o644) << 16, 0xFFFFFFFF)
        return fixed + rest + name + zip64


def _common_fields(crc32: int) -> bytes:
    """Return the fields: version 4.5, UTF-8 names, stored, 1 January 1980, checksum; sizes are in the zip64 field.

    Every entry is zip64, so that there is one form for all sizes.
    """
    return struct.pack("<HHHHHIII", 45, 0x800, 0, 0, 0x21, crc32, 0xFFFFFFFF, 0xFFFFFFFF)


def next_member(name: str, start: int, size: int, crc32: int) -> Member:
    return Member(name, start, _aligned(start + 30 + len(name.encode()) + 20 + 6), size, crc32)


def _end_records(n_members: int, start: int, size: int) -> bytes:
    """Return the end of the archive: the zip64 record, its locator, and the 32-bit record."""
    record = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 3 << 8 | 45, 45, 0, 0, n_members, n_members, size, start)
    locator = struct.pack("<IIQI", 0x07064B50, 0, start + size, 1)
    return record + locator + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


class Layout:
    """Offsets of a file with a header of this size and these arrays."""

    def __init__(self, header_size: int, header_crc32: int, specs: Iterable[ArraySpec]) -> None:
        self.members = [next_member(HEADER_MEMBER, 0, header_size, header_crc32)]
        self.npy_headers: list[tuple[int, bytes]] = []  # (position, bytes)
        self.offsets: list[int] = []  # of the data of each array
        end = self.members[0].content + header_size
        for spec in specs:
            npy_header = spec.npy_header()
            member = next_member(spec.name + ".npy", end, len(npy_header) + spec.n_bytes, spec.crc32)
            self.members.append(member)
            self.npy_headers.append((member.content, npy_header))
            self.offsets.append(member.content + len(npy_header))
            end = member.content + member.size
        self.central_start = end
        entries = b"".join(member.central_entry() for member in self.members)
        self.tail = entries + _end_records(len(self.members), end, len(entries))
        self.file_size = end + len(self.tail)

    def structure(self) -> Iterator[tuple[int, bytes]]:
        """Yield all bytes of the file except the header text and the data of arrays, with their positions."""
        yield from ((member.start, member.local_header()) for member in self.members)
        yield from self.npy_headers
        yield self.central_start, self.tail
