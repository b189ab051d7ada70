"""A manual page without its last section -> the pages named under SEE ALSO. Long texts."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.make_data.packages import debian
from benchmarks.make_data.splits import TextRow, write_texts

PACKAGES = """
allegro4-doc apt btrfs-progs coreutils corosync-doc courier-mta cups-client devscripts dovecot-core dpkg
dpkg-dev erlang-manpages exim4-base freebsd-manpages ghostscript git-man gnutls-doc groff gromacs-data inn2
iproute2 krb5-user ldap-utils libarchive-dev libaudit-dev libbio-perl-perl libbsd-dev libcap-dev
libcatalyst-modules-perl libcurl4-doc libdbix-class-perl libibverbs-dev libmojolicious-perl libmoose-perl
libnet-dns-perl libowfat-dev libperl-critic-perl libpoe-perl libppi-perl librdmacm-dev libselinux1-dev
libssl-doc libsystemd-dev libtest-simple-perl libtiff-dev libwww-perl libxext-dev libxt-dev lvm2 manpages
manpages-dev ncurses-doc netpbm nfs-common openmpi-doc passwd pdl perl-doc postfix procps publib-dev samba
slapd slurm-client systemd tcl8.6-doc tcllib tk8.6-doc util-linux x11-utils x11-xserver-utils xfsprogs
"""
LEAST_WORDS = 50
ESCAPE = re.compile(r"\\(f\(?\w|f\[\w*\]|s[-+]?\d|[&|^/,%:]|\*\(..|\*.|\((\w\w)|w'[^']*'u?)|\\e")
MACRO = re.compile(r"^[.'][A-Za-z]{1,2}\b\s*")
SECTION = re.compile(r"^[.']\s*S[Hh]\s*")
REFERENCE = re.compile(r"([A-Za-z_][\w.:+-]*)\s*\(\s*(\d)\w*\s*\)")
MARKUP = re.compile(r"[.'][A-Za-z]{1,2}\s+|\"|\\f.|\\[|&]|\\")
CROSS_REFERENCE = re.compile(r"^\.Xr\s+(\S+)\s+(\d)", re.MULTILINE)


def make(scratch: Path, folder: Path) -> None:
    write_texts((row for package in PACKAGES.split() for row in rows(debian(package, scratch))), folder)


def rows(package: Path) -> Iterator[TextRow]:
    pages = package / "usr/share/man"
    for path in sorted(pages.glob("man*/*.gz")):
        if path.is_file() and not path.is_symlink():
            text, references = parsed(gzip.decompress(path.read_bytes()).decode(errors="replace"))
            own = path.name.split(".")[0]
            labels = sorted({f"{name}({number})" for name, number in references if name != own})
            if labels and len(text.split()) >= LEAST_WORDS:
                yield labels, text


def parsed(page: str) -> tuple[str, list[tuple[str, str]]]:
    """The words of a page up to SEE ALSO, and what that section refers to."""
    text: list[str] = []
    see_also: list[str] = []
    target: list[str] = []  # nothing before the first section
    for line in page.split("\n"):
        if line.startswith(('.\\"', "'\\\"", ".TH", ".Dd", ".Dt", ".Os", ".so", ".ds", ".de", ".if", ".ie")):
            continue
        if SECTION.match(line):
            target = see_also if "SEE ALSO" in line.upper() else [] if see_also else text
        target.append(line)
    seen = "\n".join(see_also)
    found = REFERENCE.findall(MARKUP.sub("", seen)) + CROSS_REFERENCE.findall(seen)
    words = (MACRO.sub("", ESCAPE.sub("", line.replace("\\-", "-").replace("\\ ", " "))) for line in text)
    return " ".join(" ".join(words).replace('"', " ").split()), found
