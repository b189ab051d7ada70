"""Every stored table, how to see it and how to make it again.

python -m benchmarks.experiments                         the tables, each with its command
python -m benchmarks.experiments softmax-tree/missing    the stored table, and its picture if it has one
python -m benchmarks.experiments softmax-tree/missing --run    run its command
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

from benchmarks import FOLDER, pages
from benchmarks.harness.output import STORED, help_if_asked


def stored() -> dict[str, pages.Result]:
    """The stored results by name, page by page."""
    files = (path for path in sorted(STORED.glob("*/*.json")) if path.name != "page.json")
    return {f"{path.parent.name}/{path.stem}": json.loads(path.read_text()) for path in files}


def run(command: str) -> int:
    """Run the command of a result in the project's folder, with this interpreter."""
    words = shlex.split(command)
    blanks = [word for word in words if word.isupper()]
    if blanks or words[0] != "python":
        raise SystemExit(f"Run it by hand, with {' and '.join(blanks) or 'what it needs'} filled in: {command}")
    return subprocess.run([sys.executable, *words[1:]], cwd=FOLDER.parent).returncode


def main(arguments: list[str]) -> int:
    results = stored()
    if not arguments:
        width = max(map(len, results))
        print("\n".join(f"{name:{width}}  {result['command']}" for name, result in results.items()))
        return 0
    name, *rest = arguments
    if name not in results or rest not in ([], ["--run"]):
        print(__doc__, f"The tables: {', '.join(results)}", sep="\n", file=sys.stderr)
        return 2
    if rest:
        return run(results[name]["command"])
    print(pages.section(results[name], usual=""))
    return 0


if __name__ == "__main__":
    help_if_asked(__doc__)
    sys.exit(main(sys.argv[1:]))
