"""Readers and writers of the formats that data for large label sets comes in.

`read_examples` reads a file whole, `open_examples` chunk by chunk; `write_examples` writes either. See
`docs/formats.md` for what each format looks like.
"""

from treemax.formats.detection import detect_format
from treemax.formats.errors import FormatError
from treemax.formats.examples import Examples
from treemax.formats.options import FORMATS
from treemax.formats.reading import Reader, is_source, open_examples, read_examples
from treemax.formats.vw import hash_name
from treemax.formats.writing import write_examples

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
