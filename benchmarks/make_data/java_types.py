"""The text of a page on a class of Java -> the types in its signatures. Long texts."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.make_data.packages import debian
from benchmarks.make_data.splits import TextRow, write_texts

PACKAGE = "openjdk-17-doc"
SIGNATURE = re.compile(r'<div class="(?:type|member)-signature">(.*?)</div>', re.DOTALL)
TYPE = re.compile(r'title="(?:class|interface|enum|annotation|record)\w* in ([\w.]+)"[^>]*>([\w.]+)</a>')
TEXT = re.compile(r'<div class="block">(.*?)</div>', re.DOTALL)
TAG = re.compile("<[^>]*>")
LEAST_WORDS = 20


def make(scratch: Path, folder: Path) -> None:
    pages = debian(PACKAGE, scratch) / "usr/share/doc/openjdk-17-jre-headless/api"
    write_texts(rows(pages), folder)


def rows(pages: Path) -> Iterator[TextRow]:
    for path in sorted(pages.rglob("*.html")):
        page = path.read_text(errors="replace")
        types = {f"{package}.{name}" for part in SIGNATURE.findall(page) for package, name in TYPE.findall(part)}
        text = html.unescape(TAG.sub(" ", " ".join(dict.fromkeys(TEXT.findall(page)))))
        if types and len(text.split()) >= LEAST_WORDS:
            yield sorted(types), text
