"""The model file: round trips, failures that leave files intact, and damaged files.

Private writers are replaced to fail at each step, or to write slowly or wrongly.
"""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import pickle
import signal
import stat
import struct
import subprocess
import sys
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from treemax import modelfile
from treemax.modelfile import (
    ModelFileError,
    load,
    object_from_parts,
    object_parts,
    part,
    prefixed,
    read_model,
    save,
    saveable,
    write_model,
)

PLAIN_DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
SMALL = {"depth": 3, "name": "näme \ud800", "rate": 0.1, "flags": [True, None]}


def small_arrays() -> dict[str, np.ndarray]:
    return {
        "weights": np.arange(6, dtype=np.float32).reshape(2, 3),
        "part/ids": np.array([3, 1, 2], dtype=np.uint32),
        "scalar": np.array(2.5),
        "nothing": np.zeros((0, 4), dtype=np.int16),
    }


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.treemax"
    write_model(path, SMALL, small_arrays())
    return path


# --- what goes in comes out ----------------------------------------------------------------------------


def test_header_and_arrays_come_back(small: Path) -> None:
    header, arrays = read_model(small)
    assert header == SMALL
    assert same(arrays, small_arrays())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_plain_array_comes_back_in_the_same_order(tmp_path: Path, data: st.DataObject) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(PLAIN_DTYPES))).newbyteorder(data.draw(st.sampled_from("<>")))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    array = data.draw(hnp.arrays(dtype, shape))
    layout = data.draw(st.sampled_from(["C", "F", "strided"]))
    if layout == "strided" and array.ndim:
        array = np.repeat(array, 2, axis=-1)[..., ::2]
    elif layout == "F":
        array = np.asfortranarray(array)
    path = tmp_path / "one.treemax"
    write_model(path, {}, {"array": array})
    (back,) = read_model(path)[1].values()
    assert back.dtype == array.dtype.newbyteorder("<")
    assert back.shape == array.shape
    assert back.tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()
    if array.flags.f_contiguous or array.flags.c_contiguous:
        assert (back.flags.f_contiguous, back.flags.c_contiguous) == (
            array.flags.f_contiguous,
            array.flags.c_contiguous,
        )
    with zipfile.ZipFile(path) as archive:
        loaded = np.load(io.BytesIO(archive.read("array.npy")), allow_pickle=False)
    assert loaded.tobytes() == back.tobytes()
    assert (loaded.dtype, loaded.shape, loaded.flags.fnc) == (back.dtype, back.shape, back.flags.fnc)


def test_arrays_are_aligned_read_only_views(small: Path) -> None:
    for array in read_model(small)[1].values():
        assert array.ctypes.data % 64 == 0
        assert not array.flags.writeable
        assert not array.flags.owndata


def test_it_is_an_ordinary_zip_archive(small: Path) -> None:
    with zipfile.ZipFile(small) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["header.json", *(name + ".npy" for name in small_arrays())]
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
        assert json.loads(archive.read("header.json"))["header"] == read_model(small)[0]
        archive.extractall(small.parent / "unpacked")
    for name, array in small_arrays().items():
        assert np.array_equal(np.load(small.parent / "unpacked" / f"{name}.npy"), array)


def test_the_header_tells_where_the_arrays_are(small: Path) -> None:
    """What a reader in another language does: bytes 45 and 128, JSON, offsets."""
    content = small.read_bytes()
    (size,) = struct.unpack_from("<Q", content, 45)
    whole = json.loads(content[128 : 128 + size])
    assert (whole["magic"], whole["format_version"], whole["header"]) == ("treemax", 1, SMALL)
    for entry in whole["arrays"]:
        assert entry["offset"] % 64 == 0
        raw = content[entry["offset"] : entry["offset"] + entry["bytes"]]
        array = np.frombuffer(raw, entry["dtype"]).reshape(entry["shape"])
        assert np.array_equal(array, small_arrays()[entry["name"]])


def test_the_same_model_gives_the_same_bytes(small: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "again.treemax", SMALL, small_arrays())
    assert (tmp_path / "again.treemax").read_bytes() == small.read_bytes()


def test_a_model_without_arrays(tmp_path: Path) -> None:
    write_model(tmp_path / "none.treemax", {"a": 1}, {})
    assert read_model(tmp_path / "none.treemax") == ({"a": 1}, {})


def test_numpy_scalars_and_tuples_in_the_header_become_plain(tmp_path: Path) -> None:
    header = {"a": np.int32(3), "b": np.float32(0.5), "c": np.bool_(True), "d": (1, 2), "e": np.str_("x")}
    write_model(tmp_path / "m.treemax", header, {})
    assert read_model(tmp_path / "m.treemax")[0] == {"a": 3, "b": 0.5, "c": True, "d": [1, 2], "e": "x"}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"rate": float("nan")}, r"header\['rate'\] is nan"),
        ({"rate": [1, float("inf")]}, r"header\['rate'\]\[1\] is inf"),
        ({"call": len}, r"header\['call'\] is <built-in"),
        ({"map": {1: 2}}, r"header\['map'\] is \{1: 2\} \(dict\)"),
        ({"big": 2**64}, r"header\['big'\]"),
        ({"raw": b"x"}, r"\(bytes\)"),
    ],
)
def test_what_json_would_lose_is_refused(tmp_path: Path, header: dict, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        write_model(tmp_path / "m.treemax", header, {})
    assert list(tmp_path.iterdir()) == []


def test_an_endless_header_is_refused(tmp_path: Path) -> None:
    endless: dict = {}
    endless["again"] = endless
    with pytest.raises(ModelFileError, match="nested too deeply"):
        write_model(tmp_path / "m.treemax", endless, {})


@pytest.mark.parametrize(
    "array",
    [
        np.array([object()]),
        np.array(["text"]),
        np.array([b"text"]),
        np.zeros(2, dtype=[("a", "f4"), ("b", object)]),
        np.zeros(2, dtype=[("a", "f4")]),
        np.zeros(2, dtype="M8[s]"),
        np.zeros(2, dtype="V4"),
    ],
)
def test_arrays_of_anything_but_numbers_are_refused(tmp_path: Path, array: np.ndarray) -> None:
    with pytest.raises(ModelFileError, match="Array 'bad'"):
        write_model(tmp_path / "m.treemax", {}, {"good": np.ones(3), "bad": array})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["", "/", "/etc", "a/", "/a", "a//b", "..", "../a", "a/../b", ".", "a\\b", "c:", "a\0", "a\n", "ä", "x" * 501, 7],
)
def test_dangerous_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match="cannot name an array"):
        write_model(tmp_path / "m.treemax", {}, {name: np.ones(1)})


def test_prefixed_and_part_are_inverse() -> None:
    arrays = small_arrays()
    both = {**prefixed("a", arrays), **prefixed("ab", {"x": np.ones(1)}), "a": np.zeros(1)}
    assert same(part("a", both), arrays)
    assert list(part("ab", both)) == ["x"]
    assert part("none", both) == {}


# --- large files ---------------------------------------------------------------------------------------


def sparse_model(path: Path, specs: list[modelfile.ArraySpec]) -> modelfile.Layout:
    """A model file of zeros of any size that takes no room: everything but the arrays is written."""
    size = len(modelfile._header_text({}, specs, [10**19] * len(specs)))
    offsets = modelfile.Layout(size, 0, specs).offsets
    text = modelfile._header_text({}, specs, offsets).ljust(size)
    layout = modelfile.Layout(size, zlib.crc32(text), specs)
    with path.open("wb") as file:
        for position, piece in [(modelfile.HEADER_START, text), *layout.structure()]:
            file.seek(position)
            file.write(piece)
    return layout


@pytest.mark.skipif(os.name != "posix", reason="needs sparse files")
def test_files_beyond_four_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "large.treemax"
    count = 6 * 2**30 // 4
    specs = [modelfile.ArraySpec("large", "<f4", (count,), False), modelfile.ArraySpec("last", "<i8", (3,), False)]
    values = struct.pack("<3q", 7, 8, 9)
    specs[1] = replace(specs[1], crc32=zlib.crc32(specs[1].npy_header() + values))
    layout = sparse_model(path, specs)
    with path.open("r+b") as file:
        file.seek(layout.offsets[0] + 4 * (count - 1))
        file.write(struct.pack("<f", 1.5))
        file.seek(layout.offsets[1])
        file.write(values)
    arrays = read_model(path)[1]
    assert arrays["large"][-1] == 1.5
    assert arrays["last"].tolist() == [7, 8, 9]
    with zipfile.ZipFile(path) as archive:
        large, last = archive.getinfo("large.npy"), archive.getinfo("last.npy")
        assert large.file_size == 4 * count + 128
        assert last.header_offset > 2**32
        assert np.load(io.BytesIO(archive.read(last))).tolist() == [7, 8, 9]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_opening_a_large_model_touches_few_pages(tmp_path: Path) -> None:
    path = tmp_path / "large.treemax"
    sparse_model(path, [modelfile.ArraySpec(f"w{i}", "<f4", (32, 2**20), False) for i in range(8)])
    program = f"""
from pathlib import Path
from treemax.modelfile import read_model
def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])
before = pages()
header, arrays = read_model({str(path)!r})
print(Path({str(path)!r}).stat().st_size, (pages() - before) * 4096)
"""
    size, touched = map(int, run_python(program).split())
    assert size > 2**30
    assert touched < 8 * 2**20


def test_large_files_are_verified_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.treemax"
    write_model(path, {}, {"weights": np.ones(1000, dtype=np.float32)})
    with zipfile.ZipFile(path) as archive:
        offset = json.loads(archive.read("header.json"))["arrays"][0]["offset"]
    flip(path, offset + 17)
    with pytest.raises(ModelFileError, match="checksum of array 'weights'"):
        read_model(path)
    assert not (read_model(path, verify=False)[1]["weights"] == 1).all()
    monkeypatch.setattr(modelfile, "VERIFY_UP_TO", 1000)
    assert not (read_model(path)[1]["weights"] == 1).all()
    with pytest.raises(ModelFileError, match="checksum of array 'weights'"):
        read_model(path, verify=True)


def flip(path: Path, position: int, bits: int = 0x10) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= bits
    path.write_bytes(content)


def run_python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_parts_within_parts_without_end_are_refused() -> None:
    importlib.import_module("treemax.text.vectorizers")
    part: dict = {"class": "HashingText", "state": {}}
    for _ in range(5000):
        part = {"class": "TextModel", "state": {"vectorizer": part, "estimator": part}}
    with pytest.raises(ModelFileError, match="are not those of a TextModel"):
        object_from_parts(part, {})


# --- saving does no harm -------------------------------------------------------------------------------


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("failure", [fail, interrupt])
@pytest.mark.parametrize(
    "step",
    [
        "replacing.secrets.token_hex",
        "replacing.os.open",
        "replacing.os.fdopen",
        "modelfile._write_array",
        "modelfile._write_at",
        "modelfile.zlib.crc32",
        "replacing.os.fsync",
        "replacing.Path.replace",
    ],
)
def test_a_failed_save_leaves_everything_as_it_was(
    small: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: object
) -> None:
    before = small.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(f"treemax.{step}", failure)
        with pytest.raises((OSError, KeyboardInterrupt)):
            write_model(small, {"new": True}, {"w": np.ones(100)})
    assert small.read_bytes() == before
    assert list(small.parent.iterdir()) == [small]


def test_a_failure_in_the_second_array_leaves_no_trace(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = small.read_bytes()
    write, calls = modelfile._write_array, []

    def second_fails(*arguments: object) -> object:
        calls.append(arguments)
        return fail() if len(calls) == 2 else write(*arguments)

    monkeypatch.setattr(modelfile, "_write_array", second_fails)
    with pytest.raises(OSError, match="No space"):
        write_model(small, {}, {"a": np.ones(10), "b": np.ones(10)})
    assert len(calls) == 2
    assert small.read_bytes() == before
    assert list(small.parent.iterdir()) == [small]


def test_a_folder_that_cannot_be_synced_is_no_failure(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: fail() if stat.S_ISDIR(os.fstat(fd).st_mode) else real(fd))
    write_model(small, {"new": 1}, {})
    assert read_model(small)[0] == {"new": 1}


def test_content_is_on_disk_before_the_name_changes(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    fsync, rename = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def noted_rename(self: Path, target: Path) -> Path:
        steps.append("rename")
        assert read_model(self)[0] == {"new": 2}
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_rename)
    write_model(small, {"new": 2}, {})
    assert steps == ["file", "rename", "folder"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_kill_in_the_middle_of_a_save(small: Path) -> None:
    program = f"""
import time, numpy as np
from treemax import modelfile
write = modelfile._write_at
def slow(file, *rest):
    write(file, *rest)
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
modelfile._write_at = slow
modelfile.write_model({str(small)!r}, {{}}, {{"w": np.ones(1_000_000)}})
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert read_model(small)[0] == SMALL
    left = [path for path in small.parent.iterdir() if path != small]
    assert len(left) == 1  # what is left is recognisable and not a model
    assert left[0].name.startswith(".treemax-")
    with pytest.raises(ModelFileError):
        read_model(left[0])
    stray = left[0].read_bytes()
    write_model(small, SMALL, {})  # the next to save or load tidies up
    assert list(small.parent.iterdir()) == [small]
    left[0].write_bytes(stray)
    modelfile.remove_stale(small.parent)
    assert list(small.parent.iterdir()) == [small]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs locks on files")
def test_what_others_write_is_no_stray(small: Path) -> None:
    """Neither what is being written, by this process or another, nor what only looks alike is removed."""
    program = f"""
from treemax.replacing import replacing
with replacing({str(small.parent / "other.treemax")!r}) as file:
    file.write(b"x")
    print("writing", flush=True)
    input()
"""
    alike = small.parent / ".treemax-mine.tmp"
    alike.touch()
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == b"writing\n"
    with modelfile.replacing(small.parent / "third.treemax") as file:
        write_model(small, SMALL, {})
        file.write(b"y")
    process.communicate(b"\n")
    assert process.returncode == 0
    assert (small.parent / "other.treemax").read_bytes() == b"x"
    assert (small.parent / "third.treemax").read_bytes() == b"y"
    assert alike.exists()


def test_a_full_disk_is_named_with_what_is_needed(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treemax.modelfile._write_array", fail)
    with pytest.raises(OSError, match=r"No space left on device: it needs at least 8.* MB, but .* is free") as full:
        write_model(small, {}, {"w": np.ones(10**6)})
    assert full.value.filename == str(small) and full.value.errno == errno.ENOSPC


def test_a_limit_of_the_size_of_files_is_named(small: Path) -> None:
    resource = pytest.importorskip("resource")
    before, limits = small.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**5, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: more than the file system, or a limit") as refused:
            write_model(small, {}, {"w": np.ones(10**6)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused.value.filename == str(small) and small.read_bytes() == before


def test_arrays_stay_valid_when_the_file_is_replaced_or_removed(small: Path) -> None:
    header, arrays = read_model(small)
    write_model(small, header, {**arrays, "weights": arrays["weights"] + 1})  # even from its own arrays
    assert same(arrays, small_arrays())
    assert np.array_equal(read_model(small)[1]["weights"], small_arrays()["weights"] + 1)
    small.unlink()
    assert same(arrays, small_arrays())


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    path = tmp_path / "m.treemax"
    previous = os.umask(0o027)
    try:
        write_model(path, {}, {})
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        write_model(path, {}, {})
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(previous)


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_a_symbolic_link_stays_and_its_target_is_replaced(small: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, fresh = tmp_path / "elsewhere" / "link.treemax", tmp_path / "elsewhere" / "dangling.treemax"
    link.symlink_to("../small.treemax")
    fresh.symlink_to("../fresh.treemax")
    write_model(link, {"via": "link"}, {})
    write_model(fresh, {"via": "dangling"}, {})
    assert link.is_symlink() and fresh.is_symlink()
    assert read_model(small)[0] == {"via": "link"}
    assert read_model(tmp_path / "fresh.treemax")[0] == {"via": "dangling"}


def test_places_where_no_model_can_be_saved(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="folder to write to does not exist"):
        write_model(tmp_path / "no" / "m.treemax", {}, {})
    with pytest.raises(IsADirectoryError, match="in place of a folder"):
        write_model(tmp_path, {}, {})
    if os.name == "posix":
        with pytest.raises(OSError, match="Not a regular file"):
            write_model("/dev/null", {}, {})
        (tmp_path / "m.treemax").touch(0o444)
        if os.geteuid() != 0:
            with pytest.raises(PermissionError, match="write-protected"):
                write_model(tmp_path / "m.treemax", {}, {})


def test_relative_and_long_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m.treemax", "x" * 250, "ünïcode 模型.treemax"):
        write_model(name, {"name": name}, {})
        assert read_model(name)[0] == {"name": name}


# --- nothing broken gets in ----------------------------------------------------------------------------


def npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.ones(3))


def other_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


def same_names_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", json.dumps({"magic": "treemax", "format_version": 1}))


def written(content: bytes) -> object:
    return lambda path: path.write_bytes(content)


FOREIGN = {
    "empty": (written(b""), "is empty"),
    "text": (written(b"__label__a some text\n" * 50), "not a Treemax model: it begins with b'__label_'"),
    "one byte": (written(b"x"), "not a Treemax model"),
    "pickle": (written(pickle.dumps({"a": np.ones(3)})), "seems to be a pickle"),
    "gzip": (written(b"\x1f\x8b\x08" + bytes(200)), "gzip"),
    "zeros": (written(bytes(1000)), "not a Treemax model"),
    "npz": (npz, "zip archive but not a Treemax model: it begins with 'a.npy'"),
    "other zip": (other_zip, "begins with 'readme.txt'"),
    "zip with our header": (same_names_zip, "repacked by another program"),
    "empty zip": (written(b"PK\x05\x06" + bytes(18)), "not a Treemax model"),
    "folder": (lambda path: path.mkdir(), "is a folder"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files_are_refused(tmp_path: Path, kind: str) -> None:
    make, message = FOREIGN[kind]
    path = tmp_path / "foreign.treemax"
    make(path)
    for read in (read_model, load):
        with pytest.raises(ModelFileError, match=message) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_a_missing_file_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_model(tmp_path / "missing.treemax")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="not a regular file"):
        read_model(tmp_path / "pipe")


def test_a_repacked_or_compressed_archive_is_refused(small: Path) -> None:
    repacked = small.with_name("repacked.treemax")
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(small) as source, zipfile.ZipFile(repacked, "w", compression) as target:
            for name in source.namelist():
                target.writestr(name, source.read(name))
        with pytest.raises(ModelFileError, match="repacked by another program"):
            read_model(repacked)


@pytest.mark.slow
def test_every_truncation_is_refused(small: Path) -> None:
    content = small.read_bytes()
    for length in range(1, len(content)):
        small.write_bytes(content[:length])
        for verify in (None, False):
            with pytest.raises(ModelFileError, match="truncated"):
                read_model(small, verify)


def test_trailing_bytes_are_refused(small: Path) -> None:
    small.write_bytes(small.read_bytes() + b"more")
    with pytest.raises(ModelFileError, match="4 bytes follow its end"):
        read_model(small)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_is_refused(small: Path, bits: int) -> None:
    content = small.read_bytes()
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= bits
        small.write_bytes(flipped)
        with pytest.raises(ModelFileError):
            read_model(small)


def forged(path: Path, change: object) -> None:
    """A file whose header says something else, with a checksum that agrees."""
    content = path.read_bytes()
    (size,) = struct.unpack_from("<Q", content, 45)
    whole = json.loads(content[128 : 128 + size])
    whole = change(whole) or whole
    text = (whole if isinstance(whole, bytes) else json.dumps(whole).encode()).ljust(size)
    local = modelfile.next_member("header.json", 0, len(text), zlib.crc32(text)).local_header()
    path.write_bytes(local + text + content[128 + size :])


def set_first(**changes: object) -> object:
    return lambda whole: whole["arrays"][0].update(changes)


FORGERIES = {
    "future": (lambda w: w.update(format_version=2, library_version="9.0"), "format version 2.*9.0.*Upgrade"),
    "version text": (lambda w: w.update(format_version="1"), "format version is '1'"),
    "version zero": (lambda w: w.update(format_version=0), "format version is 0"),
    "no magic": (lambda w: w.pop("magic") and None, "belongs to something else"),
    "no arrays": (lambda w: w.pop("arrays") and None, "lacks 'header' or 'arrays'"),
    "no header": (lambda w: w.pop("header") and None, "lacks 'header' or 'arrays'"),
    "a list": (lambda w: [w], "belongs to something else"),
    "not JSON": (lambda w: b"{'a'}", "not valid JSON"),
    "not ASCII": (lambda w: '{"magic": "ü"}'.encode(), "not valid JSON"),
    "deep": (lambda w: b"[" * 200_000, "not valid JSON"),
    "long number": (lambda w: b'{"magic": ' + b"9" * 10_000 + b"}", "not valid JSON"),
    "NaN": (lambda w: b'{"magic": "treemax", "rate": NaN}', "not valid JSON"),
    "array not described": (lambda w: w["arrays"].append(3), "not described"),
    "duplicate": (lambda w: w["arrays"].append(w["arrays"][0]), "same name"),
    "object dtype": (set_first(dtype="|O"), "unknown dtype"),
    "list dtype": (set_first(dtype=[["a", "|O"]]), "unknown dtype"),
    "big-endian": (set_first(dtype=">f4"), "unknown dtype"),
    "negative": (set_first(shape=[-2, -3]), "impossible shape"),
    "overflow": (set_first(shape=[2**32, 2**32]), "impossible shape"),
    "overflow of nothing": (set_first(shape=[0, 2**61, 2**61]), "impossible shape"),
    "huge": (set_first(shape=[10**400]), "impossible shape"),
    "fraction": (set_first(shape=[2.0, 3]), "impossible shape"),
    "boolean": (set_first(shape=[True]), "impossible shape"),
    "no shape": (set_first(shape=None), "impossible shape"),
    "dimensions": (set_first(shape=[1] * 33), "impossible shape"),
    "wider": (set_first(shape=[2**40]), "truncated"),
    "smaller": (set_first(shape=[1]), "follow its end|damaged"),
    "offset": (set_first(offset=0), "not at the offset in its header"),
    "offset outside": (set_first(offset=2**70), "not at the offset in its header"),
    "bytes": (set_first(bytes=1), "not at the offset in its header"),
    "checksum": (set_first(crc32=-1), "incomplete"),
    "order": (set_first(fortran_order="yes"), "incomplete"),
    "name": (set_first(name="../../etc/passwd"), "cannot name an array"),
    "other name": (set_first(name="weighty"), "damaged"),
    "reshaped": (set_first(shape=[3, 2]), "damaged"),
    "retyped": (set_first(dtype="<i4"), "damaged"),
}


@pytest.mark.parametrize("verify", [None, False])
@pytest.mark.parametrize("kind", FORGERIES)
def test_forged_headers_are_refused(small: Path, kind: str, verify: bool | None) -> None:
    change, message = FORGERIES[kind]
    forged(small, change)
    with pytest.raises(ModelFileError, match=message):
        read_model(small, verify)


def test_an_enormous_header_is_refused_before_it_is_read(small: Path) -> None:
    content = bytearray(small.read_bytes())
    start = modelfile.next_member("header.json", 0, 2**60, 0).local_header()
    small.write_bytes(start + content[128:])
    with pytest.raises(ModelFileError, match="header claims"):
        read_model(small)


@pytest.mark.slow
def test_mutated_files_never_crash_the_process(small: Path) -> None:
    """Random damage, checksums never looked at, every array that comes out read to its end."""
    program = f"""
import random
from pathlib import Path
from treemax.modelfile import ModelFileError, read_model
path, chance = Path({str(small)!r}), random.Random(0)
content, loaded = path.read_bytes(), 0
for _ in range(2000):
    damaged = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(damaged))
        damaged[at : at + chance.choice([0, 1, 1, 8])] = chance.randbytes(chance.choice([0, 1, 1, 8]))
    path.write_bytes(damaged)
    try:
        header, arrays = read_model(path, verify=False)
        loaded += all(len(array.tobytes()) == array.nbytes for array in arrays.values())
    except ModelFileError:
        pass
print(loaded)
"""
    assert int(run_python(program)) < 2000


# --- objects -------------------------------------------------------------------------------------------


@saveable
class Dot:
    def __init__(self, weights: np.ndarray, name: str) -> None:
        self.weights, self.name = weights, name

    def to_parts(self) -> tuple[dict, dict]:
        return {"name": self.name}, {"weights": self.weights}

    @classmethod
    def from_parts(cls, header: dict, arrays: dict) -> Dot:
        if arrays["weights"].ndim != 1:
            raise ValueError("weights must be a vector")
        return cls(arrays["weights"], header["name"])


@saveable
class Pair:
    def __init__(self, one: Dot, other: Dot) -> None:
        self.one, self.other = one, other

    def to_parts(self) -> tuple[dict, dict]:
        (one, first), (other, second) = object_parts(self.one), object_parts(self.other)
        return {"one": one, "other": other}, {**prefixed("one", first), **prefixed("other", second)}

    @classmethod
    def from_parts(cls, header: dict, arrays: dict) -> Pair:
        return cls(*(object_from_parts(header[name], part(name, arrays)) for name in ("one", "other")))


def test_objects_come_back_as_what_they_were(tmp_path: Path) -> None:
    save(Pair(Dot(np.arange(3.0), "a"), Dot(np.ones(2), "b")), tmp_path / "pair.treemax")
    pair = load(tmp_path / "pair.treemax")
    assert type(pair) is Pair and type(pair.one) is Dot
    assert (pair.one.name, pair.other.name) == ("a", "b")
    assert pair.one.weights.tolist() == [0, 1, 2] and pair.other.weights.tolist() == [1, 1]
    assert list(read_model(tmp_path / "pair.treemax")[1]) == ["one/weights", "other/weights"]


@pytest.mark.parametrize(
    ("header", "arrays", "message"),
    [
        ({"class": "Sphinx", "state": {}}, {}, "'Sphinx'.*newer Treemax or by an extension"),
        ({}, {}, "no object of a saveable class"),
        ({"class": ["Dot"], "state": {}}, {}, "no object of a saveable class"),
        ({"class": "Dot", "state": 3}, {}, "no object of a saveable class"),
        ({"class": "Dot", "state": {"name": "a"}}, {}, "are not those of a Dot .KeyError: 'weights'"),
        ({"class": "Dot", "state": {}}, {"weights": np.ones(2)}, "are not those of a Dot .KeyError: 'name'"),
        ({"class": "Dot", "state": {"name": ""}}, {"weights": np.ones((2, 2))}, "must be a vector"),
        ({"class": "Pair", "state": {"one": 3}}, {}, "are not those of a Pair"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path: Path, header: dict, arrays: dict, message: str) -> None:
    path = tmp_path / "m.treemax"
    write_model(path, header, arrays)
    with pytest.raises(ModelFileError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_only_registered_classes_are_saved(tmp_path: Path) -> None:
    class Derived(Dot):
        pass

    for thing in (Derived(np.ones(1), ""), {"a": 1}):
        with pytest.raises(ModelFileError, match="not registered with @saveable"):
            save(thing, tmp_path / "m.treemax")
    assert list(tmp_path.iterdir()) == []


def test_two_classes_cannot_share_a_name() -> None:
    assert saveable(Dot) is Dot
    with pytest.raises(ValueError, match="Two saveable classes are called Dot"):
        saveable(type("Dot", (), {"__module__": "elsewhere"}))


def test_what_does_not_read_back_as_written_does_not_replace_a_good_file(tmp_path, monkeypatch):
    path = tmp_path / "model.treemax"
    write_model(path, {}, {"numbers": np.arange(3)})

    write_array = modelfile._write_array

    def wrong(file, offset, spec, array):
        right = write_array(file, offset, spec, array)
        write_array(file, offset, spec, array + 1)  # other bytes than those of the checksum
        return right

    monkeypatch.setattr(modelfile, "_write_array", wrong)
    with pytest.raises(ModelFileError, match="was not saved, and the previous file is unchanged"):
        write_model(path, {}, {"numbers": np.arange(4)})
    assert read_model(path)[1]["numbers"].tolist() == [0, 1, 2]
    assert [file.name for file in tmp_path.iterdir()] == ["model.treemax"]
