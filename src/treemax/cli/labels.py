"""The command labels."""

from __future__ import annotations

from typing import Any

import click

from treemax.cli.options import Reading, data_options


@click.command(short_help="Forget, rename, merge or add labels of a model.")
@click.argument("model")
@click.option("--forget", metavar="FILE", help="Labels to forget, one per line.")
@click.option("--rename", metavar="FILE", help="Lines of a label, a tab and its new name.")
@click.option("--merge", metavar="FILE", help="Lines of a label, a tab and the label that it is merged into.")
@click.option("--add", metavar="DATA", help="Examples of new labels, and of known ones; only the new ones are learned.")
@click.option("--parents", metavar="FILE", help="Lines of a new label, a tab and the node or label to put it at.")
@click.option("--hierarchy", metavar="FILE", help="The taxonomy to keep in NEW: lines of parent, tab, child, or JSON.")
@click.option("-o", "--output", required=True, metavar="NEW", help="File of the changed model; it may be MODEL.")
@click.option("--resume", is_flag=True, help="Store the optimiser state in NEW, so that training can continue.")
@data_options
def labels(
    model: str, forget: str | None, rename: str | None, merge: str | None, add: str | None, parents: str | None,
    hierarchy: str | None, output: str, resume: bool, reading: Reading,
) -> None:  # fmt: skip
    """Change the labels of MODEL, and save it as NEW: first forget, then rename, merge, and add.

    --hierarchy has the new names.
    """
    from treemax.cli.data import load_model, read_taxonomy
    from treemax.cli.label_files import read_label_pairs, read_labels
    from treemax.cli.saving import finish, save_model

    if all(option is None for option in (forget, rename, merge, add, hierarchy)):
        raise click.UsageError("Give --forget, --rename, --merge, --add or --hierarchy.")
    if parents is not None and add is None:
        raise click.UsageError("--parents goes with --add.")
    loaded = load_model(model, None)
    if forget is not None:
        loaded.forget(read_labels(forget, loaded.label_index_))
    if rename is not None:
        loaded.rename(read_label_pairs(rename, loaded.label_index_))
    if merge is not None:
        loaded.merge(read_label_pairs(merge, loaded.label_index_))
    if add is not None:
        _add(loaded, add, None if parents is None else read_label_pairs(parents, loaded.label_index_), reading)
    if hierarchy is not None:
        loaded.set_taxonomy(read_taxonomy(hierarchy, loaded))
    finish(output, save_model(loaded, output, resume=resume))
    click.echo(f"{loaded.describe()['labels']:,} labels in {output}", err=True)


def _add(model: Any, data: str, parent: dict[Any, Any] | None, reading: Reading) -> None:
    """Add the labels of DATA to a model."""
    from treemax.cli.data import check_kind, open_data, read_whole
    from treemax.models.training.stored_examples import training_labels

    with open_data(data, reading, model=model) as reader:
        examples = read_whole(reader)
    check_kind(model, examples, data)
    weights = {} if examples.weights is None else {"sample_weight": examples.weights}
    y = training_labels(examples.labels, model.multi_label_)
    model.add_labels(examples.features, y, parent=parent, **weights)
