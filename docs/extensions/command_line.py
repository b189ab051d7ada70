"""For the page on the command line: usage, description and options of each command, from the command itself.

They are put below the headings `## treemax NAME`, in front of what the page says there.
"""

from __future__ import annotations

import re
from typing import Any

import click

from treemax.cli.main import commands

MODEL_OPTIONS = ("model_name", "as_published", "settings", "text_settings")


def on_page_markdown(markdown: str, page: Any, **others: Any) -> str:
    """Called by MkDocs for every page."""
    return with_commands(markdown) if page.file.src_uri == "command-line.md" else markdown


def with_commands(markdown: str) -> str:
    """Return the page with the options of the commands below their headings."""
    shared = {"Input options": ("eval", _is_reading), "Model options": ("fit", _is_of_model)}
    for heading, (name, belongs) in shared.items():
        options = [option for option in visible_options(commands.commands[name]) if belongs(option)]
        markdown = markdown.replace(f"\n## {heading}\n", f"\n## {heading}\n\n{table(options)}\n")
    return re.sub(
        r"^## treemax (\w+)\n", lambda found: found[0] + "\n" + document(found[1]) + "\n", markdown, flags=re.M
    )


def document(name: str) -> str:
    """Return usage, description and options of a command as Markdown."""
    command = commands.commands[name]
    context = click.Context(command, info_name=f"treemax {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    paragraphs = [" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n")]
    options = visible_options(command)
    own = [option for option in options if not _is_reading(option) and not _is_of_model(option)]
    parts = [f"```text\ntreemax {name} {usage}\n```", *map(_with_flags, paragraphs)]
    if own:
        parts.append(table(own))
    groups = {"model": _is_of_model, "input": _is_reading}
    shared = [f"[{group} options](#{group}-options)" for group, belongs in groups.items() if any(map(belongs, options))]
    if shared:
        parts.append(f"Also the {' and the '.join(shared)}.")
    return "\n\n".join(parts)


def visible_options(command: click.Command) -> list[click.Option]:
    """Return the options that `--help` shows."""
    return [option for option in command.params if isinstance(option, click.Option) and not option.hidden]


def table(options: list[click.Option]) -> str:
    """Return options, defaults and meanings as a table."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for option in options:
        value = "" if option.is_flag else f" {option.metavar or _metavar(option)}"
        flags = ", ".join(f"`{flag}{value}`{{ .option }}" for flag in option.opts)
        default = "required" if option.required else f"`{option.default}`" if option.show_default else ""
        cells = (flags, default, _with_flags(option.help or ""))
        rows.append("".join(f"| {_escaped(cell)} " for cell in cells) + "|")
    return "\n".join(rows)


def _escaped(cell: str) -> str:
    """Return a cell of a table with its bars escaped, but for those in code, which Markdown takes as they are."""
    return re.sub(r"(`[^`]*`)|\|", lambda found: found[1] or "\\|", cell)


def _with_flags(text: str) -> str:
    """Return a text with its options as code."""
    return re.sub(r"(?<![\w`-])(--[a-z][a-z-]*)", r"`\1`{ .option }", text)


def _metavar(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        choices = [str(choice) for choice in option.type.choices]
        return "|".join(choices) if len(choices) < 6 else (option.name or "").removeprefix("read_").upper()
    number = isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
    return "N" if number else option.type.name.upper()


def _is_reading(option: click.Option) -> bool:
    """Whether an option is in the table of input options; `--from` is called `--format` there."""
    return (option.name or "").startswith("read_") and option.opts != ["--from"]


def _is_of_model(option: click.Option) -> bool:
    return option.name in MODEL_OPTIONS
