"""The prompt and help of an option of the Linux kernel -> the options it depends on or selects."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.make_data.packages import debian
from benchmarks.make_data.splits import TextRow, write_texts

PACKAGE = "linux-source-6.1"
ENTRY = re.compile(r"^(?:menu)?config\s+\w+\s*$", re.MULTILINE)
END = re.compile(r"^(?:if|endif|menu|endmenu|choice|endchoice|comment|source|config|menuconfig)\b", re.MULTILINE)
PROMPT = re.compile(r"^\s+(?:bool|tristate|string|int|hex|prompt)\s+\"(.*)\"", re.MULTILINE)
NEEDS = re.compile(r"^\s+(?:depends on|select|imply)\s+(.*)$", re.MULTILINE)
HELP = re.compile(r"^\s+(?:---)?help(?:---)?\s*$", re.MULTILINE)
LEAST_WORDS = 5


def make(scratch: Path, folder: Path) -> None:
    (archive,) = (debian(PACKAGE, scratch) / "usr/src").glob("linux-source-*.tar.xz")
    with tarfile.open(archive) as files:
        texts = [
            file.read().decode(errors="replace")
            for member in files
            if Path(member.name).name.startswith("Kconfig") and (file := files.extractfile(member))
        ]
    write_texts((row for text in texts for row in rows(text)), folder)


def rows(kconfig: str) -> Iterator[TextRow]:
    """One row for each option that has a help text and needs others."""
    joined = kconfig.replace("\\\n", " ")
    starts = [match.end() for match in ENTRY.finditer(joined)]
    for start, stop in zip(starts, [*starts[1:], len(joined)]):
        entry = END.split(joined[start:stop])[0]
        head, *helps = HELP.split(entry, maxsplit=1)
        needed = {word for line in NEEDS.findall(head) for word in re.findall(r"[A-Z][A-Z0-9_]+", line)}
        prompt = " ".join(PROMPT.findall(head))
        text = f"{prompt} {' '.join(helps)}"
        if needed and len(text.split()) >= LEAST_WORDS:
            yield sorted(needed), text
