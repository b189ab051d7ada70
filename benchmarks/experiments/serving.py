"""The service under load: `python -m benchmarks.experiments.serving answers|learning|memory` (needs wrk and Linux).

`answers`: texts of ten words of wordnet, one a request, to LabelTree, and, if PEER is the interpreter of an environment
with omikuji, fastapi, uvicorn[standard], scikit-learn and vowpalwabbit, to omikuji behind FastAPI and to Vowpal Wabbit's
daemon, which reads lines of text from a socket. `learning`: examples a request,
each acknowledged when it is on disk. `memory MINUTES`: a mixed load at a fixed rate. Processor times are those of the
server. MODEL is a model file of wordnet, LabelTree or OnlineLabelTree; without it one is trained.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.output import help_if_asked, store, table

SECONDS = 5
ROUNDS = 3
RATE = 30  # requests a second of the mixed load
PREDICT = '{{"texts": ["{text}"], "k": 5}}'
EXPLAIN = '{{"texts": ["{text}"]}}'
LEARN = '{{"texts": ["{text}"], "labels": [["{label}"]], "wait": false}}'
SCRIPT = """
local bodies = {{}}
for line in io.lines("{bodies}") do bodies[#bodies + 1] = line end
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local i = 0
request = function()
  i = i % #bodies + 1
  return wrk.format(nil, "{path}", nil, bodies[i])
end
"""


def examples() -> list[tuple[str, str]]:
    """Texts of ten words and labels of wordnet's test rows."""
    from treemax.datasets import load_wordnet

    test = load_wordnet().test
    pairs = zip(test.texts, test.labels)
    return [(re.sub(r'["\\]', "", " ".join(text.split()[:10])), labels[0]) for text, labels in pairs]


@contextlib.contextmanager
def process(command: list[str], port: int, http: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """Context manager for a server; it has started when /health answers, or, without HTTP, when it accepts connections."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=os.setpgrp)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                if http:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=300).read()
                else:
                    socket.create_connection(("127.0.0.1", port), 5).close()
                break
            time.sleep(0.5)
        yield server
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def processor_seconds(server: subprocess.Popen[bytes]) -> float:
    """Return the processor time of a process and its children."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in (server.pid, *children)]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


def load(
    server: subprocess.Popen[bytes], url: str, script: Path, connections: int, seconds: int = SECONDS
) -> list[Any]:
    """Return answers a second, the median and the 99th percentile in milliseconds, and processor microseconds an answer."""
    before = processor_seconds(server)
    done = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(script), url],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    used = processor_seconds(server) - before
    n = int(re.findall(r"(\d+) requests in", done)[0])
    if "Non-2xx" in done:
        raise SystemExit(done)
    rate = float(re.findall(r"Requests/sec:\s+([\d.]+)", done)[0])
    return [rate, *(milliseconds(done, share) for share in ("50", "99")), 1e6 * used / n]


def load_lines(
    server: subprocess.Popen[bytes], port: int, lines: list[bytes], connections: int, seconds: int = SECONDS
) -> list[Any]:
    """The same for a server that answers each line on a plain socket with a line."""
    before, times, sent, turn = processor_seconds(server), [], {}, 0
    with selectors.DefaultSelector() as ready, contextlib.ExitStack() as stack:
        for _ in range(connections):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ready.register(client, selectors.EVENT_READ)
            sent[client] = time.perf_counter()
            client.sendall(lines[turn % len(lines)])
            turn += 1
        start = time.perf_counter()
        while time.perf_counter() < start + seconds:
            for key, _ in ready.select():
                client: Any = key.fileobj
                if not client.recv(4096).endswith(b"\n"):
                    raise SystemExit("the server closed a connection, or sent half a line")
                times.append(time.perf_counter() - sent[client])
                sent[client] = time.perf_counter()
                client.sendall(lines[turn % len(lines)])
                turn += 1
        elapsed = time.perf_counter() - start
        used = processor_seconds(server) - before
    each = sorted(times)
    return [len(each) / elapsed, 1e3 * each[len(each) // 2], 1e3 * each[len(each) * 99 // 100], 1e6 * used / len(each)]


def milliseconds(report: str, share: str) -> float:
    value, unit = re.findall(rf"{share}%\s+([\d.]+)(us|ms|s)\b", report)[0]
    return float(value) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[unit]


def script(folder: Path, name: str, path: str, bodies: list[str]) -> Path:
    (folder / f"{name}.txt").write_text("\n".join(bodies))
    file = folder / f"{name}.lua"
    file.write_text(SCRIPT.format(bodies=folder / f"{name}.txt", path=path))
    return file


def serving(model: Path, port: int, folder: Path) -> list[str]:
    arguments = ["serve", str(model), "--port", str(port), "--data", str(folder / "data")]
    return [sys.executable, "-m", "treemax", *arguments]


def trained(folder: Path, online: bool) -> Path:
    """Return a file of wordnet's LabelTree, or of an OnlineLabelTree of its first 20,000 rows."""
    if os.environ.get("MODEL"):
        return Path(os.environ["MODEL"])
    import treemax
    from treemax.datasets import load_wordnet

    train, path = load_wordnet().train, folder / f"wordnet-{'online' if online else 'batch'}.treemax"
    labels = [own[0] for own in train.labels]
    if online:
        model = treemax.TextModel(treemax.HashingText(), treemax.OnlineLabelTree())
        model.partial_fit(train.texts[:20000], labels[:20000]).save(path, resume=True)
    else:
        treemax.TextModel().fit(train.texts, labels).save(path)
    return path


def measure_answers(folder: Path) -> None:
    texts = [text for text, _ in examples()]
    lua = script(folder, "predict", "/predict", [PREDICT.format(text=text) for text in texts])
    lines = [f"| {re.sub('[:|]', ' ', text.lower())}\n".encode() for text in texts]
    commands = {"treemax serve, one worker": serving(trained(folder, online=False), 8151, folder)}
    if peer := os.environ.get("PEER"):
        beside = Path(__file__).parent
        omikuji = [str(beside / "omikuji_service.py"), str(folder / "omikuji"), "8152"]
        daemon = [str(beside / "vw_daemon.py"), str(folder / "vw"), "8153", "64"]
        commands |= {"omikuji, 1 tree, behind FastAPI": [peer, *omikuji]}
        commands |= {"Vowpal Wabbit's daemon, 64 processes, plain TCP": [peer, *daemon]}
    found: dict[str, dict[int, list[list[Any]]]] = {name: {1: [], 64: []} for name in commands}
    with contextlib.ExitStack() as stack:
        servers = {}
        for port, (name, command) in enumerate(commands.items(), 8151):
            servers[name] = port, stack.enter_context(process(command, port, http="plain TCP" not in name))

        def measured(name: str, connections: int, seconds: int) -> list[Any]:
            port, server = servers[name]
            if "plain TCP" in name:
                return load_lines(server, port, lines, connections, seconds)
            return load(server, f"http://127.0.0.1:{port}", lua, connections, seconds)

        for name in commands:
            measured(name, 8, 2)  # warm
        for _ in range(ROUNDS):  # one after the other, so that all meet the same load of the machine
            for name in commands:
                for connections in (1, 64):
                    found[name][connections].append(measured(name, connections, SECONDS))
                    print(name, connections, found[name][connections][-1], flush=True)
    rows = []
    for name, by_connections in found.items():
        for connections, runs in by_connections.items():
            best = max(runs)
            rows.append([name, connections, *best[:3], min(run[3] for run in runs)])
    keep(
        "serving-answers",
        "Answers over HTTP",
        rows,
        "Texts of ten words, one a request, on the same two cores; the fastest of three runs of five seconds; processor time of the server, the least of three. "
        "HTTP by wrk; Vowpal Wabbit (`--plt`, labels without probabilities) answers lines on a plain socket, sent by a Python client.",
    )


def measure_learning(folder: Path) -> None:
    bodies = [LEARN.format(text=text, label=label) for text, label in examples()]
    lua, rows = script(folder, "learn", "/learn", bodies), []
    with process(serving(trained(folder, online=True), 8153, folder), 8153) as server:
        for connections in (1, 64):
            runs = [load(server, "http://127.0.0.1:8153", lua, connections) for _ in range(ROUNDS)]
            best = max(runs)
            rows.append(["OnlineLabelTree", connections, *best[:3], min(run[3] for run in runs)])
            print(rows[-1], flush=True)
    keep(
        "serving-learning",
        "Acknowledged examples",
        rows,
        "One example a request, acknowledged after an fsync; requests that wait share one. The server learns at the same time.",
    )


def counted(url: str, *names: str) -> list[int]:
    """Return counters of /metrics."""
    with urllib.request.urlopen(url + "/metrics") as reply:
        text = reply.read().decode()
    return [int(float(re.findall(rf"^treemax_{name}\{{.*\}} (\S+)$", text, re.MULTILINE)[0])) for name in names]


class MixedLoad(threading.Thread):
    """A client that predicts, explains, searches labels and teaches, in turn, at a fixed rate on one connection."""

    def __init__(self, port: int, rate: float, start: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._port, self._seconds, self._i, self._stopped = port, 1 / rate, start, stop
        self.answered = 0
        self.error: Exception | None = None

    def run(self) -> None:
        pairs = known_examples()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        due = time.monotonic()
        try:
            while not self._stopped.is_set():
                connection.request(*mixed_request(self._i, *pairs[self._i % len(pairs)]))
                reply = connection.getresponse()
                body = reply.read()
                if reply.status != 200:
                    raise ValueError(f"status {reply.status}: {body[:200]!r}")
                self.answered += 1
                self._i += 1
                due = max(due + self._seconds, time.monotonic() - 1)  # after a pause, do not catch up with a burst
                self._stopped.wait(max(0.0, due - time.monotonic()))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.error = error


def known_examples() -> list[tuple[str, str]]:
    """Return examples that the online model was trained on: learned again, they bring no new labels or features."""
    from treemax.datasets import load_wordnet

    train = load_wordnet().train
    pairs = zip(train.texts[:2000], train.labels[:2000])
    return [(re.sub(r'["\\]', "", text), labels[0]) for text, labels in pairs]


def mixed_request(i: int, text: str, label: str) -> tuple[str, str, bytes | None, dict[str, str]]:
    """Return the i-th request: of six, three predict, and one each explains, searches and teaches."""
    if i % 6 == 4:
        return "GET", "/labels?" + urllib.parse.urlencode({"q": label[14:18], "limit": 20}), None, {}
    path, body = {3: ("/explain", EXPLAIN.format(text=text)), 5: ("/learn", LEARN.format(text=text, label=label))}.get(
        i % 6, ("/predict", PREDICT.format(text=text))
    )
    return "POST", path, body.encode(), {"content-type": "application/json"}


def memory_of(server: subprocess.Popen[bytes]) -> list[float]:
    """Return the resident memory of a process in MB, and the part of it that is not mapped from files."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return [int(re.findall(rf"{name}:\s+(\d+)", status)[0]) / 1024 for name in ("VmRSS", "RssAnon")]


def measure_memory(folder: Path, minutes: float) -> None:
    """Record memory every ten seconds under MixedLoad by four connections."""
    url, stop, found = "http://127.0.0.1:8154", threading.Event(), []
    with process(serving(trained(folder, online=True), 8154, folder), 8154) as server:
        clients = [MixedLoad(8154, RATE / 4, 501 * i, stop) for i in range(4)]
        for client in clients:
            client.start()
        start = time.monotonic()
        while time.monotonic() < start + 60 * minutes:
            time.sleep(10)
            failed = [client.error for client in clients if client.error is not None]
            if failed:
                raise SystemExit(f"a client failed: {failed[0]}")
            learned, labels = counted(url, "examples_learned", "labels")
            answered = sum(client.answered for client in clients)
            found.append([(time.monotonic() - start) / 60, answered, learned, labels, *memory_of(server)])
            print(json.dumps(found[-1]), flush=True)
        stop.set()
        for client in clients:
            client.join()
    keep_memory(found)


def keep_memory(found: list[list[Any]]) -> None:
    """Store the range of memory in each sixth of the time."""
    rows = []
    for i in range(6):
        part = found[i * len(found) // 6 : (i + 1) * len(found) // 6]
        ranges = [
            {"value": statistics.median(of), "low": min(of), "high": max(of)} for of in zip(*(row[4:] for row in part))
        ]
        rows.append([round(part[-1][0]), *part[-1][1:4], *ranges])
    columns = ["minutes", "requests", "examples learned", "labels",
               {"name": "resident MB", "decimals": 1}, {"name": "without mapped files", "decimals": 1}]  # fmt: skip
    store("systems", "serving-memory", title="Memory under mixed load", columns=columns, rows=rows,
          shows=f"One worker with an OnlineLabelTree answers {RATE} requests a second on four connections: half predict, the others "
          "explain, search labels and teach. What is taught was in the training rows, so that the model itself need not grow. "
          "Memory every ten seconds: the median of the minutes since the row above, and the range.")  # fmt: skip
    print(table([str(column) for column in columns], [[str(cell) for cell in row] for row in rows]))


def keep(name: str, title: str, rows: list[list[Any]], shows: str) -> None:
    columns = ["server", "connections", {"name": "a second", "decimals": 0}, {"name": "p50 ms", "decimals": 1},
               {"name": "p99 ms", "decimals": 1}, {"name": "processor us each", "decimals": 0}]  # fmt: skip
    priority = Path("/proc/self/autogroup").read_text().split()[-1]
    first = "" if priority == "0" else f", the measured processes with a niceness of {priority}"
    busy = f"a two-core x86-64 machine, shared with other work (load {os.getloadavg()[0]:.0f}){first}"
    store("systems", name, title=title, shows=shows, columns=columns, rows=rows, machine=busy)
    print(table([str(column) for column in columns], [[str(cell) for cell in row] for row in rows]))


def main() -> None:
    what, *rest = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        if what == "memory":
            measure_memory(Path(folder), float(rest[0]) if rest else 60)
        else:
            {"answers": measure_answers, "learning": measure_learning}[what](Path(folder))


if __name__ == "__main__":
    help_if_asked(__doc__)
    main()
