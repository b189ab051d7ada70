"""`as_published`: the settings of the papers, and the tables of the documentation."""

from __future__ import annotations

import ast
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

import treemax

DOCS = Path(__file__).parents[3] / "docs"
PAGES = {
    "label-tree": treemax.LabelTree,
    "online-label-tree": treemax.OnlineLabelTree,
    "recall-tree": treemax.RecallTree,
    "lom-tree": treemax.LOMTree,
    "double-sampling": treemax.DoubleSampling,
    "mach": treemax.MACH,
    "memory-tree": treemax.ContextualMemoryTree,
    "softmax-tree": treemax.SoftmaxTree,
    "learned-tree": treemax.LearnedTree,
    "language-model": treemax.TreeLanguageModel,
}
CLASSIFIERS = [model for model in PAGES.values() if model is not treemax.TreeLanguageModel]
WITHOUT_PAPER = [treemax.OneVsAll, treemax.SoftmaxForest]


def extension():
    """The hook of MkDocs that writes the tables of parameters."""
    spec = spec_from_file_location("model_parameters", DOCS / "extensions" / "model_parameters.py")
    hook = module_from_spec(spec)
    spec.loader.exec_module(hook)
    return hook


@pytest.mark.parametrize("page", PAGES)
def test_pages_show_all_parameters_that_differ(page):
    model = PAGES[page]
    section = (DOCS / f"{page}.md").read_text().partition("## Differences from the paper\n")[2].partition("\n## ")[0]
    assert f"\n<!-- published: {model.__name__} -->\n" in section
    written = extension().on_page_markdown(section)
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| `(.+?)` \|$", written, re.MULTILINE)
    table = {name: (ast.literal_eval(default), ast.literal_eval(paper)) for name, default, paper in rows}
    defaults, published = model().get_params(), model.as_published().get_params()
    assert {name: default for name, (default, _) in table.items()}.items() <= defaults.items()
    assert published == {**defaults, **{name: paper for name, (_, paper) in table.items()}}


@pytest.mark.parametrize("page", [*PAGES, "one-vs-all"])
def test_pages_describe_the_parameters_that_matter(page):
    page = (DOCS / f"{page}.md").read_text()
    section = page.partition("## Parameters that matter\n")[2].partition("\n## ")[0]
    [names] = re.findall(r"^<!-- parameters: \w+ --> (.+)$", section, re.MULTILINE)
    written = extension().on_page_markdown(section)
    described = re.findall(r"^\| `(\w+)` \| `.+?` \| .{15,} \|$", written, re.MULTILINE)
    assert described == re.findall(r"`(\w+)`", names)


def test_a_parameter_without_description_is_refused():
    with pytest.raises(ValueError, match="The docstring of OneVsAll does not describe verb"):
        extension().description(treemax.OneVsAll, "verb")


def test_every_model_has_published_settings_or_none():
    known = {*treemax.MODELS.values(), treemax.TreeLanguageModel}
    assert known == {*PAGES.values(), *WITHOUT_PAPER}


@pytest.mark.parametrize("model", WITHOUT_PAPER)
def test_a_model_without_a_paper_is_refused(model):
    with pytest.raises(ValueError, match=f"{model.__name__} does not come from a paper"):
        model.as_published()


def test_overrides_replace_the_settings_of_the_paper():
    model = treemax.OnlineLabelTree.as_published(arity=5, n_jobs=1)
    assert (model.arity, model.n_jobs, model.max_leaf) == (5, 1, 100)
    assert treemax.OnlineLabelTree.as_published().arity == 2
    with pytest.raises(TypeError, match="depths"):
        treemax.SoftmaxTree.as_published(depths=5)


# What the papers and their programs state, as docs/papers.md lists it; appendix C of softmax trees is for ODP.
STATED = {
    treemax.SoftmaxTree: {
        "missing": "zero-one", "iterations": 20, "alpha": 0.1, "start": "prototypes", "n_init": 10, "tolerance": 1e-3,
        "ridge": 0.0, "plane_penalty": 1.0, "spill": 0.0, "growth": 1.0, "accept_worse": True, "early_share": 1.0,
        "early_steps": None, "smoothing": 0.0,
    },
    treemax.RecallTree: {
        "algorithm": "paper", "bound": 1.0, "router_weight": "printed", "least_gradient": 0.0, "final_rate": 1.0,
        "path_features": True, "randomized_routing": False, "scale": False,
    },
    treemax.OnlineLabelTree: {
        "learning_rate": 1.0, "epsilon": 0.01, "alpha": 0.75, "max_leaf": 100, "passes": 3, "shuffle": True, "arity": 2,
        "together": True, "search": "exact", "scale_siblings": False, "normalize": False, "least_gradient": 0.0,
        "schedule": "adagrad", "policy": "best-greedy", "tree": None,
    },
    treemax.LearnedTree: {
        "arity": 20, "dimension": 200, "start": "huffman", "objective": "log-likelihood", "schedule": "hold",
        "n_assignments": 10, "assign_until": 0.5, "assign_by": "log-gradient", "statistics": "running",
        "prior_count": 1.0, "labels": "one", "passes": 25, "optimizer": "sgd", "dropout": 0.0, "max_depth": None,
    },
    treemax.TreeLanguageModel: {
        "arity": 65, "tree": "learned", "direct": 0, "optimizer": "sgd", "assign_by": "log-gradient",
        "statistics": "running", "assign_every": 0.1, "assign_until": 1.0, "transitions": "full",
    },
}  # fmt: skip


@pytest.mark.parametrize("model", STATED)
def test_published_settings_are_those_that_the_papers_state(model):
    published = model.as_published().get_params()
    assert {name: published[name] for name in STATED[model]} == STATED[model]


def test_the_published_recall_tree_updates_everything_by_the_printed_weight():
    model = treemax.RecallTree.as_published()
    assert (model.router_weight, model.least_gradient) == ("printed", 0.0)
    assert (model.path_features, model.randomized_routing) == (True, False)


@pytest.mark.parametrize("model", CLASSIFIERS)
def test_published_classifiers_fit_and_predict(model):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(12), 25)
    X = np.eye(12, 20, dtype=np.float32)[y] + rng.normal(0, 0.1, (len(y), 20)).astype(np.float32)
    assert model.as_published(verbose=0).fit(X, y).score(X, y) > 0.7


def test_a_published_language_model_learns():
    texts = ["the cat sat", "the dog sat", "a cat ran", "a dog ran"] * 25
    model = treemax.TreeLanguageModel.as_published(dimension=8, context=2, verbose=0).fit(texts)
    assert model.perplexity(texts) < len(model.classes_)
