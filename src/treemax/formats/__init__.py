"""Readers and writers of the formats that data for large label sets comes in.

`read_examples` reads a file whole, `open_examples` chunk by chunk; `write_examples` writes either. See
`docs/formats.md` for what each format looks like.
"""

from typing import TYPE_CHECKING

from treemax.lazy import lazy_attributes

if TYPE_CHECKING:
    from treemax.formats.detection import detect_format
    from treemax.formats.errors import FormatError
    from treemax.formats.examples import Examples
    from treemax.formats.options import FORMATS
    from treemax.formats.reading import Reader, is_source, open_examples, read_examples
    from treemax.formats.vw import hash_name
    from treemax.formats.writing import write_examples

# Names are imported on first use: the parsers of lines need neither SciPy nor Numba.
_HOMES = {
    "FORMATS": "treemax.formats.options",
    "Examples": "treemax.formats.examples",
    "FormatError": "treemax.formats.errors",
    "Reader": "treemax.formats.reading",
    "detect_format": "treemax.formats.detection",
    "hash_name": "treemax.formats.vw",
    "is_source": "treemax.formats.reading",
    "open_examples": "treemax.formats.reading",
    "read_examples": "treemax.formats.reading",
    "write_examples": "treemax.formats.writing",
}

__all__ = [
    "FORMATS",
    "Examples",
    "FormatError",
    "Reader",
    "detect_format",
    "hash_name",
    "is_source",
    "open_examples",
    "read_examples",
    "write_examples",
]

__getattr__ = lazy_attributes(__name__, _HOMES)
