"""The documentation is true: examples run as written, links resolve, the site builds."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import click
import pytest

import treemax
from treemax.cli.main import commands

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "treemax"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), ROOT / "benchmarks" / "README.md"]
WITH_EXTRAS = ("clusters", "river-and-annif", "tree-softmax")  # tests/extras runs these


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks in a language, each with the number of its first line."""
    text = page.read_text()
    fenced = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in fenced]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- sessions ------------------------------------------------------------------------------------------


def run_python_blocks(page: Path) -> None:
    """Run the Python blocks of a page in order, as one session in the current folder."""
    namespace: dict[str, object] = {"__name__": "session"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # a session shows no surprises
        for line, code in blocks(page, "python"):
            tree = ast.increment_lineno(ast.parse(code), line - 1)  # so that a failure points into the page
            exec(compile(tree, named(page), "exec"), namespace)


IN_PYTHON = [page for page in sorted(DOCS.glob("*.md")) if blocks(page, "python") and page.stem not in WITH_EXTRAS]


@pytest.mark.slow
@pytest.mark.parametrize("page", IN_PYTHON, ids=named)
def test_python_blocks_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_python_blocks(page)


@pytest.mark.slow
def test_readme_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    [(_, code)], [(_, shown)] = (blocks(ROOT / "README.md", language) for language in ("python", "text"))
    exec(code, {})
    printed = capsys.readouterr().out.splitlines()
    for line, promised in zip(printed, shown.splitlines(), strict=True):
        (said, score), (expected, expected_score) = (text.rsplit(", ", 1) for text in (line, promised))
        assert said == expected and float(score) == pytest.approx(float(expected_score), abs=0.1)


@pytest.mark.slow
def test_readme_shell_session_runs(tmp_path):
    printed = in_shell("\n".join(code for _, code in blocks(ROOT / "README.md", "bash")), tmp_path)
    shown = re.search(r"answers\s+`(\{.*?\})`", (ROOT / "README.md").read_text())
    answer, promised = (json.loads(text) for text in (printed.split("\n")[0], shown[1]))
    assert answer["labels"] == promised["labels"]
    assert answer["scores"] == pytest.approx(promised["scores"], abs=0.05)


def in_shell(script: str, folder: Path) -> str:
    """What a script prints, in an empty folder, with the command of this environment first on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if shutil.which("treemax", path=path) is None or shutil.which("bash") is None:
        pytest.skip("needs bash, and the treemax command installed beside this Python")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- links ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:|\.\./\.\./actions/", target):  # elsewhere, or the workflow on GitHub
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{named(page)} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors(file), f"{named(page)} links to {target}; there are {sorted(anchors(file))}"


def anchors(page: Path) -> set[str]:
    """The headings of a page as the ends of links to them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    for page in DOCS.rglob("*.md"):
        name = str(page.relative_to(DOCS))
        assert f": {name}\n" in navigation, f"{name} is not in the navigation of mkdocs.yml"


# --- the architecture ----------------------------------------------------------------------------------


def architecture_table(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of docs/architecture.md."""
    section = (DOCS / "architecture.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.split("\n") if line.startswith("|")]
    return rows[2:]


def imported_modules(file: Path) -> set[str]:
    """The parts of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("treemax.")}
    return found


def test_nothing_imports_upwards():
    layers = [re.findall(r"`(\w+)`", cells[0]) for cells in architecture_table("Layers")]
    height = {name: -depth for depth, names in enumerate(layers) for name in names}
    modules = {path.stem for path in (PACKAGE).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules - {"__init__", "__main__"} == set(height), "the table of layers and the package differ"
    for file in PACKAGE.rglob("*.py"):
        name = str(file.relative_to(PACKAGE))
        own = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own not in height or name == "parallel/ray_cluster.py":  # workers load the models they will train
            continue
        for other in imported_modules(file) & set(height):
            assert height[other] <= height[own], f"{name} imports {other}, which is above it"


# A model may use these others, as the papers do.
ACQUAINTED = {("language_model", "learned_tree"), ("mach", "one_vs_all")}


# What a folder that several models share may import from the other folders in `models/`.
SHARED = {"base": {"training", "trained"}, "training": set(), "trained": set()}


def test_models_import_no_other_models():
    folders = {path.name for path in (PACKAGE / "models").iterdir() if (path / "__init__.py").exists()}
    for own, allowed in SHARED.items():
        for file in (PACKAGE / "models" / own).glob("*.py"):
            others = {other for other in folders - {own} if f"treemax.models.{other}." in file.read_text()}
            assert others <= allowed, f"{own}/{file.name} imports {others - allowed}"
    models = folders - set(SHARED)
    for own in models:
        for file in (PACKAGE / "models" / own).glob("*.py"):
            text = file.read_text()
            for other in sorted(models - {own}):
                if f"treemax.models.{other}" in text:
                    assert (own, other) in ACQUAINTED, f"{own}/{file.name} imports {other}"


def test_places_in_the_architecture_exist():
    text = (DOCS / "architecture.md").read_text()
    for name in re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text):
        homes = [PACKAGE, PACKAGE / "models"]
        assert any((home / name).exists() for home in homes), f"docs/architecture.md says {name}"


def test_names_on_the_page_of_the_papers_exist():
    """Files, `module.function`, `Class.method`, names and parameters in code font."""
    files = [file for top in ("src", "tests", "benchmarks") for file in (ROOT / top).rglob("*.py")]
    hidden = {file for file in files if any(part.startswith(".") for part in file.relative_to(ROOT).parts)}
    sources = {file: file.read_text() for file in files if file not in hidden}  # such as environments of peers
    everything = "\n".join(sources.values())
    for code in re.findall(r"`([^`]+)`", (DOCS / "papers.md").read_text()):
        if "/" in code or code.endswith(".py"):
            found = any(code in file.as_posix() for file in sources)
        elif code.startswith("treemax."):
            found = find_spec(code) is not None
        elif match := re.fullmatch(r"(\w+)\.(\w+)(\(\))?", code):
            home, name, _ = match.groups()
            texts = [text for file, text in sources.items() if file.stem == home or re.search(rf"class {home}\b", text)]
            inherited = name == "as_published" and hasattr(treemax, home)
            found = inherited or any(re.search(rf"(def|class) {name}\b", text) for text in texts)
        else:
            names = re.findall(r"[A-Za-z_]\w*", code.removeprefix("--"))
            found = all(re.search(rf"\b{name}\b", everything) for name in names)
        assert found, f"docs/papers.md says {code}"


SETTINGS_OF_PAPERS = [
    code for code in re.findall(r"`([^`]+)`", (DOCS / "papers.md").read_text()) if re.match(r"\w+=", code)
]


@pytest.mark.parametrize("code", sorted(set(SETTINGS_OF_PAPERS)))
def test_settings_on_the_page_of_the_papers_are_those_of_a_model(code):
    call = ast.parse(f"model({code})", mode="eval").body
    settings = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    allowed = []
    for model in (*treemax.MODELS.values(), treemax.TreeLanguageModel):
        if settings.keys() <= model().get_params().keys():
            try:
                model(**settings)._check_parameters()
                allowed.append(model)
            except ValueError:
                continue
    assert allowed, f"docs/papers.md has {code}, which no model takes"


# --- the command line ----------------------------------------------------------------------------------


def written_command_line() -> str:
    """The page on the command line as the site has it: MkDocs adds the options of the commands."""
    spec = spec_from_file_location("command_line", DOCS / "extensions" / "command_line.py")
    hook = module_from_spec(spec)
    spec.loader.exec_module(hook)
    return hook.with_commands((DOCS / "command-line.md").read_text())


def test_every_command_is_documented_with_its_options():
    page = written_command_line()
    assert set(re.findall(r"^## treemax (\w+)$", page, re.MULTILINE)) == set(commands.commands)
    for name, command in commands.commands.items():
        options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
        missing = [
            option.opts for option in options if not option.help or not all(f"`{flag}" in page for flag in option.opts)
        ]
        assert not missing, f"{name}: {missing} have no help, or are not on the page"


def test_every_option_mentioned_exists():
    options = {flag for command in commands.commands.values() for option in command.params for flag in option.opts}
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", written_command_line()))
    assert mentioned <= options | {"--help", "--version"}


def test_bars_of_choices_stay_in_their_cell():
    assert "| `--text tfidf|hashing`{ .option } |" in written_command_line()


def command_lines() -> list[str]:
    """Every call of `treemax` in a block of the documentation, but for the patterns with `[OPTIONS]`."""
    lines = [line for page in PAGES for _, code in blocks(page, "(?:bash|text)") for line in code.split("\n")]
    calls = (re.search(r"(?:^|\| )treemax ([a-z].*)$", line) for line in lines)
    return sorted({call[1] for call in calls if call is not None and "OPTIONS" not in call[1]})


@pytest.mark.parametrize("line", command_lines())
def test_commands_in_blocks_are_understood(line):
    name, *arguments = shlex.split(line)
    commands.commands[name].make_context(name, arguments)  # reads the options, runs nothing


# --- the site ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it."""
    for needed in ("mkdocs", "material", "mkdocstrings"):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_site_fetches_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        fetched = re.findall(
            r"<(?:link|script|img|iframe)\b[^>]*\b(?:href|src)=\"?(?:https?:)?//[^>]*>", page.read_text()
        )
        assert not fetched, f"{page.name}: {fetched}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text()), sheet.name


@pytest.mark.slow
def test_reference_has_every_public_name(site):
    import treemax
    import treemax.formats
    import treemax.metrics

    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    public = [f"treemax.{name}" for name in treemax.__all__ if name != "__version__"]
    for module in (treemax.metrics, treemax.formats):
        public += [f"{module.__name__}.{name}" for name in module.__all__ if name != "FORMATS"]
    missing = [name for name in public if f'id="{name}"' not in text]
    assert not missing, f"docs/api does not have {missing}"
    assert "Bases:" not in text, "base classes are internal"
