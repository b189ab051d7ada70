"""The command labels."""

from __future__ import annotations

import click


@click.command(short_help="Forget, rename or merge labels of a model.")
@click.argument("model")
@click.option("--forget", metavar="FILE", help="Labels to forget, one per line.")
@click.option("--rename", metavar="FILE", help="Lines of a label, a tab and its new name.")
@click.option("--merge", metavar="FILE", help="Lines of a label, a tab and the label that it is merged into.")
@click.option("-o", "--output", required=True, metavar="NEW", help="File of the changed model; it may be MODEL.")
@click.option("--resume", is_flag=True, help="Keep in NEW what learning needs to continue.")
def labels(
    model: str, forget: str | None, rename: str | None, merge: str | None, output: str, resume: bool
) -> None:  # fmt: skip
    """Change the labels of MODEL without training, and save it as NEW: first forget, then rename, then merge."""
    from treemax.cli.data import load_model
    from treemax.cli.label_files import read_label_pairs, read_labels
    from treemax.cli.saving import finish, save_model

    if forget is None and rename is None and merge is None:
        raise click.UsageError("Give --forget, --rename or --merge.")
    loaded = load_model(model, None)
    if forget is not None:
        loaded.forget(read_labels(forget, loaded.label_index_))
    if rename is not None:
        loaded.rename(read_label_pairs(rename, loaded.label_index_))
    if merge is not None:
        loaded.merge(read_label_pairs(merge, loaded.label_index_))
    finish(output, save_model(loaded, output, resume=resume))
    click.echo(f"{loaded.describe()['labels']:,} labels in {output}", err=True)
