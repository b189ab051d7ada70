"""`treemax stream` that is killed or interrupted at random moments: no acknowledged work is lost, and what goes on from a
checkpoint ends as if it had never been stopped. Commands that end on a full disk keep the model."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.limits import ROUNDS
from treemax import load

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals and limits on files")

MODELS = {
    "online-label-tree": ("svm", ["--model", "online-label-tree"]),
    "recall-tree": ("jsonl", ["--model", "recall-tree", "--set", "algorithm=paper"]),
    "one-vs-all": ("ft", ["--model", "one-vs-all"]),
    "learned-tree": ("svm", ["--model", "learned-tree", "--set", "stream_assign_every=50"]),
}


def example(chance: random.Random, kind: str) -> str:
    label = chance.randrange(30)
    if kind == "svm":
        return f"{label} {label}:1 {40 + chance.randrange(4000)}:{chance.random():.3f}"
    if kind == "jsonl":
        features = [round(chance.gauss(label >> bit & 1, 0.5), 3) for bit in range(5)]
        return json.dumps({"features": features, "label": f"c{label}"})
    return f"__label__c{label} w{label} v{chance.randrange(9)}"


def written(folder: Path, kind: str, n: int = 400) -> Path:
    chance, path = random.Random(3), folder / f"data.{kind}"
    path.write_text("".join(example(chance, kind) + "\n" for _ in range(n)))
    return path


def command(*arguments: object, env_place: Path | None = None, **options: object) -> subprocess.Popen:
    """A command that has begun; its temporary files and its home are in `env_place`."""
    places = {} if env_place is None else {"TMPDIR": str(env_place), "HOME": str(env_place)}
    return subprocess.Popen(
        [sys.executable, "-m", "treemax", *map(str, arguments)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **places}, **options,
    )  # fmt: skip


def learned(running: subprocess.Popen, n: int) -> None:
    """Wait until so many examples are reported, or the end."""
    assert running.stdout is not None
    for line in running.stdout:
        if json.loads(line).get("examples", 0) >= n:
            return


def done(running: subprocess.Popen) -> dict[str, float]:
    out, error = running.communicate(timeout=300)
    assert running.returncode == 0, error
    return json.loads(out.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_killed_stream_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    kind, options = MODELS[name]
    data, whole, model, folder = written(tmp_path, kind), tmp_path / "a", tmp_path / "b", tmp_path / "kept"
    expected = done(command("stream", data, "-o", whole, "--json", *options))
    chance = random.Random(5)
    for _ in range(-(-ROUNDS // 2)):
        again = ["stream", data, "-o", model, "--json", "--checkpoint", folder, "--every", "0", *options]
        for at in (8, chance.choice([32, 64, 128])):  # where it goes on, it only reports what comes after
            running = command(*again)
            learned(running, at)
            time.sleep(chance.uniform(0, 0.1))
            running.kill()
            ended_before = running.wait() == 0
            assert model.exists() == ended_before
        found = done(command(*again))
        assert model.read_bytes() == whole.read_bytes()
        assert found["P@1"] == expected["P@1"] and found["n"] == expected["n"]
        assert found["nDCG@5"] == pytest.approx(expected["nDCG@5"], abs=1e-9)
        assert list(folder.iterdir()) == []
        model.unlink()


@pytest.mark.slow
def test_a_storm_of_interruptions_leaves_the_model(tmp_path: Path) -> None:
    """However often Ctrl-C is pressed while the model is saved: it is there, and it is whole."""
    data, model, folder = written(tmp_path, "svm", 100_000), tmp_path / "model.treemax", tmp_path / "kept"
    chance = random.Random(7)
    for _ in range(ROUNDS):
        running = command(
            "stream", data, "-o", model, "--json", "--checkpoint", folder, *MODELS["online-label-tree"][1]
        )
        learned(running, chance.choice([64, 256, 1024]))
        while running.poll() is None:
            running.send_signal(signal.SIGINT)
            time.sleep(chance.choice([0, 0.0001, 0.001, 0.01]))
        _, error = running.communicate()
        assert (running.returncode, "Traceback" in error) == (130, False), error
        assert load(model, verify=True).n_examples_ >= 64
        assert [path.name for path in folder.iterdir()] == ["stream.treemax"]
        model.unlink()
        (folder / "stream.treemax").unlink()


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))


def test_a_model_that_does_not_fit_is_written_elsewhere(tmp_path: Path) -> None:
    """A small file system where one may be mounted: the model goes to the folder for temporary files."""
    data, full, spare = written(tmp_path, "svm"), tmp_path / "full", tmp_path / "spare"
    full.mkdir()
    spare.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no file system can be mounted here")
    try:
        for name in ("fit", "stream"):
            running = command(name, data, "-o", full / "model.treemax", "--model", "one-vs-all", env_place=spare)
            _, error = running.communicate(timeout=300)
            assert running.returncode == 1 and "Traceback" not in error
            assert f"{full / 'model.treemax'}: No space left on device: it needs " in error
            (found,) = spare.glob("treemax-*/model.treemax")
            assert f"the model is in {found}" in error
            assert load(found, verify=True).n_examples_ == 400
            assert list(full.iterdir()) == []
            found.unlink()
    finally:
        subprocess.run(["umount", str(full)], check=True)


def test_no_room_anywhere_is_said_in_words(tmp_path: Path) -> None:
    data, model = written(tmp_path, "svm"), tmp_path / "model.treemax"
    running = command("fit", data, "-o", model, preexec_fn=small_files, env_place=tmp_path)
    _, error = running.communicate(timeout=300)
    assert running.returncode == 1 and "Traceback" not in error
    assert f"{model}: File too large: " in error and "neither there nor elsewhere" in error
    assert not list(tmp_path.glob("*.treemax")) and not list(tmp_path.glob("*treemax-*"))
