"""End-to-end tests of the command line: fit, predict and eval of all formats, options and help."""

from __future__ import annotations

import json
from importlib.util import find_spec

import numpy as np
import pytest

import treemax
from tests.cli.commands import FEATURE_FORMATS, TEXT_FORMATS, done, refused, treemax_command
from treemax import OneVsAll
from treemax.cli.main import commands
from treemax.cli.options import read_value
from treemax.formats import FORMATS, read_examples

EVAL_LINES = [
    "n", "n_unlabelled", "n_unseen", "P@1", "P@3", "P@5", "recall@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "macro_F1@1",
    "label_coverage@5", "labels_known", "ms_per_example", "model_mb",
]  # fmt: skip


@pytest.mark.parametrize("name", ["train.txt", "multi.txt", *FEATURE_FORMATS.values(), *TEXT_FORMATS.values()])
def test_fit_predict_eval_info_stream_in_every_format(folder, tmp_path, name):
    data, model = folder / name, tmp_path / "model.treemax"
    fitted = treemax_command("fit", data, "-o", model, "--model", "one-vs-all", "--set", "passes=4", "--jobs", 1)
    assert fitted.exit_code == 0 and fitted.stdout == ""
    assert "OneVsAll" in fitted.stderr and "100" in fitted.stderr

    answers = [json.loads(line) for line in done("predict", model, data, "--top", 2).splitlines()]
    truth = read_examples(data, zero_based=True).labels
    assert len(answers) == 100
    assert all(list(answer) == ["labels", "scores"] and len(answer["labels"]) == 2 for answer in answers)
    assert all(answer["scores"] == sorted(answer["scores"], reverse=True) for answer in answers)
    hits = np.mean([answer["labels"][0] in truth[row] for row, answer in enumerate(answers)])
    assert hits > 0.95

    measured = json.loads(done("eval", model, data, "--json"))
    assert set(EVAL_LINES) <= set(measured)
    assert measured["n"] == 100 and measured["P@1"] == pytest.approx(hits)
    assert measured["model_mb"] == model.stat().st_size / 1e6
    table = done("eval", model, data)
    shown = [line.split()[0] for line in table.splitlines()]
    of_predict = ["micro_F1", "macro_F1"] if name == "multi.txt" else []
    assert shown == [*EVAL_LINES[:-3], *of_predict, *EVAL_LINES[-3:]]

    facts = json.loads(done("info", model, "--json"))
    assert facts["model"] == "OneVsAll" and facts["labels"] == 3 and facts["bytes"] == model.stat().st_size
    assert facts["examples"] == 100 and facts["multi_label"] == (name == "multi.txt")
    assert "labels" in done("info", model, "--verify")

    reports = [json.loads(line) for line in done("stream", data, "--json").splitlines()]
    assert [report["examples"] for report in reports[:-1]] == [1, 2, 4, 8, 16, 32, 64, 100]
    assert reports[-1]["n"] == 100 and reports[-1]["P@1"] == reports[-2]["precision"] > 0.7


@pytest.mark.parametrize("name", ["train.txt", "multi.txt", "text.parquet", "data.svm", "data.arrow"])
def test_fit_with_little_memory_gives_the_same_file(folder, tmp_path, name):
    arguments = ["fit", folder / name, "--model", "label-tree", "--set", "max_leaf=2"]
    done(*arguments, "-o", tmp_path / "memory.treemax")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for more in ([], ["--scratch", scratch]):
        done(*arguments, "-o", tmp_path / "disk.treemax", "--memory", "4GB", *more)
        assert (tmp_path / "disk.treemax").read_bytes() == (tmp_path / "memory.treemax").read_bytes()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["disk.treemax", "memory.treemax", "scratch"]
    assert "expected a size such as 2GB" in refused(*arguments, "-o", tmp_path / "x", "--memory", "lots", code=2)
    assert "is too little for" in refused(*arguments, "-o", tmp_path / "x", "--memory", "10MB")
    arguments[3] = "one-vs-all"
    assert "--memory is for label-tree" in refused(*arguments[:4], "-o", tmp_path / "x", "--memory", "1GB", code=2)


def test_a_model_may_be_named_as_its_class(folder, tmp_path):
    models = [tmp_path / name for name in ("LabelTree", "label-tree")]
    for model in models:
        done("fit", folder / "train.txt", "-o", model, "--model", model.name)
    assert models[0].read_bytes() == models[1].read_bytes()


def test_eval_and_stream_report_the_same(folder, tmp_path):
    data, model = folder / "multi.txt", tmp_path / "model.treemax"
    lines = done("stream", data, "--chunk", 50, "-o", model, "--k", 2, "--json").splitlines()
    streamed = json.loads(lines[-1])
    measured = json.loads(done("eval", model, data, "--k", 2, "--json"))
    assert "P@2" in measured and "P@5" not in measured
    in_both = [name for name in measured if name in streamed]
    assert in_both == [name for name in streamed if name in measured]
    only = {"PSP", "PSnDCG", "n_unseen", "model_mb"}  # of a model that is trained, and a file
    of_predict = {"micro_F1", "macro_F1"}
    assert {name.partition("@")[0] for name in measured.keys() - streamed.keys()} == only | of_predict
    assert streamed.keys() - measured.keys() == {"learn_ms_per_example"}
    tables = [
        [line.split()[0] for line in done(*command, "--k", 2).split("\n\n")[-1].splitlines()]
        for command in (["eval", model, data], ["stream", data, "--chunk", 50])
    ]
    assert [name for name in tables[0] if name in tables[1]] == tables[1][:-1]


@pytest.mark.parametrize("name", ["train.txt", "data.svm"])
@pytest.mark.parametrize("kind", ["one-vs-all", "softmax-tree"])
def test_perplexity_and_coverage_are_shown_when_asked_for(folder, tmp_path, name, kind):
    data, model = folder / name, tmp_path / "model.treemax"
    done("fit", data, "-o", model, "--model", kind)
    measured = json.loads(done("eval", model, data, "--perplexity", "--json"))
    loaded, examples = treemax.load(model), read_examples(data, zero_based=True)
    own = loaded.predict_proba_of(examples.X, np.reshape(examples.y, (-1, 1)))[:, 0]
    expected = treemax.metrics.perplexity(own)
    assert measured["perplexity"] == pytest.approx(expected.perplexity)
    assert measured["coverage"] == pytest.approx(expected.coverage)
    plain, more = (
        [line.split()[0] for line in done("eval", model, data, *flag).splitlines()] for flag in ([], ["--perplexity"])
    )
    assert set(more) - set(plain) == {"perplexity", "coverage", "error@1", "error@3", "error@5"}
    assert plain == [line for line in more if line in plain]


def test_labels_that_training_never_had_are_not_covered(folder, tmp_path):
    model, data = tmp_path / "model.treemax", tmp_path / "data.txt"
    lines = (folder / "train.txt").read_text().splitlines()[:10]
    data.write_text("\n".join([*lines, *(f"__label__unheard {line.partition(' ')[2]}" for line in lines)]) + "\n")
    done("fit", folder / "train.txt", "-o", model, "--model", "one-vs-all")
    assert json.loads(done("eval", model, data, "--perplexity", "--json"))["coverage"] == 0.5
    done("fit", folder / "multi.txt", "-o", model, "--model", "one-vs-all")
    assert "is multi-label" in refused("eval", model, data, "--perplexity")


def test_predict_from_allowed_labels_and_with_weights(folder, tmp_path):
    labels, weights, numbers = tmp_path / "labels.txt", tmp_path / "weights.tsv", tmp_path / "numbers.txt"
    labels.write_text("car\nsea\nunheard\n")
    weights.write_text("fruit\t1e6\n")
    numbers.write_text("0\n2\n")
    text, data = ("predict", folder / "text.treemax", folder / "train.txt"), ("predict", folder / "features.treemax")

    def answers(*command):
        return [json.loads(line)["labels"] for line in done(*command).splitlines()]

    assert all(set(row) == {"car", "sea"} for row in answers(*text, "--labels", labels))
    assert all(row == ["fruit"] for row in answers(*text, "--exclude", labels))
    assert all(row[0] == "fruit" for row in answers(*text, "--label-weights", weights))
    assert answers(*text, "--label-weights", "propensity", "--labels", labels) == answers(*text, "--labels", labels)
    assert all(row == [1] for row in answers(*data, folder / "data.svm", "--exclude", numbers))
    assert "are integers, got 'car'" in refused(*data, folder / "data.svm", "--labels", labels, code=2)
    assert "expected a label, a tab and a weight" in refused(*text, "--label-weights", labels, code=2)
    assert "none.txt: No such file or directory." in refused(*text, "--labels", tmp_path / "none.txt", code=2)
    assert "cannot be combined" in refused(*text, "--labels", labels, "--threshold", 0.5, code=2)
    labels.write_text("unheard\n")
    assert "knows none of the 1 allowed labels" in refused(*text, "--labels", labels)


def test_thresholds_are_chosen_and_kept(folder, tmp_path):
    model, chosen = tmp_path / "model.treemax", tmp_path / "chosen.treemax"
    done("fit", folder / "multi.txt", "-o", model, "--model", "label-tree")
    done("thresholds", model, folder / "multi.txt", "-o", chosen)
    assert "a threshold for each label, chosen for macro-f1 on 100 rows" in done("info", chosen)
    done("thresholds", model, folder / "multi.txt", "-o", chosen, "--precision", 0.9)
    assert "one threshold, chosen for precision" in treemax.load(chosen).describe()["decision"]
    assert "is MODEL itself" in refused("thresholds", model, folder / "multi.txt", "-o", model, code=2)
    assert "one label per example" in refused("thresholds", folder / "text.treemax", folder / "train.txt", "-o", chosen)


@pytest.mark.parametrize("name", ["train.txt", "data.svm"])
def test_predictions_and_figures_of_every_label(folder, tmp_path, name):
    data, model, out = folder / name, tmp_path / "model.treemax", tmp_path / "predictions.jsonl"
    done("fit", data, "-o", model, "--model", "one-vs-all")
    options = ["--per-label", "--predictions", out, "--json"]
    truth = [list(own) for own in read_examples(data, zero_based=True).labels]
    for command in (["eval", model, data], ["stream", data]):
        measured = json.loads(done(*command, *options).splitlines()[-1])
        answers = [json.loads(line) for line in out.read_text().splitlines()]
        assert [answer["true"] for answer in answers] == truth
        first = [answer["labels"][0] if answer["labels"] else None for answer in answers]
        hits = [answer in own for answer, own in zip(first, truth)]
        assert measured["P@1"] == pytest.approx(np.mean(hits))
        figures = {row["label"]: row for row in measured["per_label"]}
        assert len(figures) == 3
        assert [row["examples"] for row in measured["per_label"]] == sorted(
            (row["examples"] for row in figures.values()), reverse=True
        )
        for label, row in figures.items():
            right = sum(hit for hit, own in zip(hits, truth) if own == [label])
            assert row["examples"] == truth.count([label]) and row["predicted"] == first.count(label)
            assert row["recall"] == pytest.approx(right / row["examples"], abs=1e-3)
            assert row["precision"] == pytest.approx(right / max(1, row["predicted"]), abs=1e-3)
    table = done("eval", model, data, "--per-label").split("\n\n")[1].splitlines()
    assert table[0].split() == [
        "label",
        "examples",
        "predicted",
        "precision",
        "recall",
        "F1",
        "recall@5",
        "confused_with",
    ]
    assert len(table) == 4
    with_checkpoint = ["--predictions", out, "--checkpoint", tmp_path / "kept"]
    assert "cannot be combined" in refused("stream", data, *with_checkpoint, code=2)
    for command in (["eval", model, data], ["stream", data]):
        assert "is DATA itself" in refused(*command, "--predictions", data, code=2)
    assert "is MODEL itself" in refused("eval", "--predictions", model, model, data, code=2)


@pytest.mark.parametrize("name", ["blank.txt", "data.jsonl", "data.svm", "dense.jsonl"])
def test_a_row_without_a_label_is_left_out_of_multi_class_data(tmp_path, name):
    rows = {
        "blank.txt": ["__label__a red apple", "", "__label__b red car"],
        "data.jsonl": ['{"text": "red apple", "label": "a"}', '{"text": "red"}', '{"text": "red car", "label": "b"}'],
        "data.svm": ["1 1:1", " 2:1", "2 1:1 3:1"],
        "dense.jsonl": ['{"features": [1, 0], "label": 1}', '{"features": [1, 1]}', '{"features": [0, 1], "label": 2}'],
    }[name]
    data, model = tmp_path / name, tmp_path / "m.treemax"
    data.write_text("\n".join([rows[1], *rows * 5]) + "\n")
    fitted = treemax_command("fit", data, "-o", model)
    assert fitted.exit_code == 0 and "Left out 6 rows without a label" in fitted.stderr
    facts = json.loads(done("info", model, "--json"))
    assert facts["examples"] == 10 and not facts["multi_label"]
    for chunk in (1, 4, 100):
        streamed = treemax_command("stream", data, "--json", "--chunk", chunk)
        assert streamed.exit_code == 0 and "Left out 6 rows without a label" in streamed.stderr
        assert json.loads(streamed.stdout.splitlines()[-1])["n"] == 10
    data.write_text(rows[1] + "\n")
    for command in (("fit", data, "-o", model), ("stream", data)):
        assert "no labels" in refused(
            *command, "--format", {".txt": "fasttext", ".svm": "svmlight"}.get(data.suffix, "auto")
        )


def test_fit_advises_on_labels_that_look_joined_or_like_numbers_of_rows(tmp_path):
    data, model = tmp_path / "data.csv", tmp_path / "m.treemax"
    rows = [
        f"{i},text of row {i},{'; '.join(sorted({'abc'[i % 3], 'bca'[i % 2], 'cab'[i // 9 % 3]}))}" for i in range(120)
    ]
    data.write_text("\n".join(["id,text,tags", *rows]) + "\n")
    joined = treemax_command("fit", data, "-o", model, "--label-column", "tags")
    assert joined.exit_code == 0 and "if it separates labels, add --label-separator ';'" in joined.stderr
    parted = treemax_command("fit", data, "-o", model, "--label-column", "tags", "--label-separator", ";")
    assert parted.exit_code == 0 and "separator" not in parted.stderr
    data.write_text('text,label\nIt purrs.,"cat; pet"\nIt barks.,"dog; pet"\nIt sings.,bird\n')
    few = treemax_command("fit", data, "-o", model)
    assert few.exit_code == 0 and "Labels such as 'cat; pet' have a ';': if it separates labels" in few.stderr
    data.write_text("\n".join(["id,text,tags", *rows]) + "\n")
    numbered = treemax_command("fit", data, "-o", model, "--label-column", "id")
    assert numbered.exit_code == 0 and "Each of the 120 rows has another label" in numbered.stderr
    assert "m.treemax: is a Treemax model, not data" in refused("fit", model, "-o", tmp_path / "other.treemax")


def test_a_model_of_one_label_is_evaluated(tmp_path):
    (tmp_path / "one.txt").write_text("__label__only red apple\n__label__only red pear\n")
    done("fit", tmp_path / "one.txt", "-o", tmp_path / "m.treemax")
    measured = json.loads(done("eval", tmp_path / "m.treemax", tmp_path / "one.txt", "--json"))
    assert measured["P@1"] == 1.0 and measured["P@5"] == pytest.approx(0.2)
    assert json.loads(done("predict", tmp_path / "m.treemax", tmp_path / "one.txt").splitlines()[0]) == {
        "labels": ["only"], "scores": [1.0],
    }  # fmt: skip


def test_a_blank_line_is_no_example_to_measure(tmp_path):
    (tmp_path / "data.txt").write_text("__label__a red apple\n__label__b red car\n\n" * 3)
    done("fit", tmp_path / "data.txt", "-o", tmp_path / "m.treemax")
    measured = json.loads(done("eval", tmp_path / "m.treemax", tmp_path / "data.txt", "--json").splitlines()[-1])
    assert measured["n"] == 6 and measured["P@1"] == 1.0


def test_answers_do_not_depend_on_the_chunk(folder):
    model, data = folder / "features.treemax", folder / "data.svm"
    assert done("predict", model, data, "--chunk", 1) == done("predict", model, data, "--chunk", 7)


def test_resume_keeps_what_learning_needs(folder, tmp_path):
    for name, options in (("small", ()), ("large", ("--resume",))):
        done("fit", folder / "data.svm", "-o", tmp_path / name, "--model", "one-vs-all", *options)
    assert (tmp_path / "large").stat().st_size > (tmp_path / "small").stat().st_size


def test_hashed_text_and_its_settings(folder, tmp_path):
    model = tmp_path / "m.treemax"
    options = ("--text", "hashing", "--text-set", "bits=10", "--text-set", "ngram_range=1,2")
    done("fit", folder / "train.txt", "-o", model, *options)
    vectorizer = treemax.load(model).vectorizer
    assert vectorizer.bits == 10 and tuple(vectorizer.ngram_range) == (1, 2)


def test_names_are_hashed_as_for_the_training(tmp_path):
    data, model = tmp_path / "data.vw", tmp_path / "m.treemax"
    data.write_text("1 |x red round\n2 |x fast loud\n" * 5)
    done("fit", data, "-o", model, "--bits", 9)
    assert treemax.load(model).reading_ == {"bits": 9}
    assert json.loads(done("eval", model, data, "--json"))["P@1"] == 1.0
    for options in ([], ["--bits", 9]):
        answers = done("predict", model, data, "--top", 1, *options)
        assert json.loads(answers.splitlines()[0])["labels"] == [1]
    for command in (["predict", model, data], ["eval", model, data], ["stream", data, "--start", model]):
        assert "--bits 12 differs from that of the model, 9" in refused(*command, "--bits", 12, code=2)


def test_labels_of_every_script_come_out_readable(tmp_path):
    data, model = tmp_path / "data.jsonl", tmp_path / "m.treemax"
    names = ["größe", "模型", "😀", 'quote"', "a b"]
    rows = [{"features": {str(i): 1.0}, "labels": [name]} for i, name in enumerate(names) for _ in range(5)]
    data.write_text("\n".join(map(json.dumps, rows)) + "\n")
    done("fit", data, "-o", model)
    out = done("predict", model, data, "--top", 1)
    assert [json.loads(line)["labels"] for line in out.splitlines()] == [row["labels"] for row in rows]
    assert "größe" in out and "模型" in out


def test_half_a_character_is_escaped(folder, tmp_path):
    OneVsAll().fit(np.eye(2), ["\ud800", "b"]).save(tmp_path / "m.treemax")
    line = done("predict", tmp_path / "m.treemax", folder / "data.svm").splitlines()[0]
    assert "\ud800" in json.loads(line)["labels"]


def test_changed_labels(folder, tmp_path):
    model, new = folder / "text.treemax", tmp_path / "new.treemax"
    before = treemax.load(model)
    first, second, third = before.classes_[:3].tolist()
    for name, text in (("gone", f"{first}\n"), ("names", f"{second}\tanother\n"), ("parts", f"{third}\tanother\n")):
        (tmp_path / name).write_text(text)
    done("labels", model, "--forget", tmp_path / "gone", "--rename", tmp_path / "names", "--merge", tmp_path / "parts",
         "-o", new)  # fmt: skip
    changed = treemax.load(new)
    assert changed.describe()["label_changes"] == [{"forgot": 1}, {"renamed": 1}, {"merged": 1}]
    assert changed.describe()["labels"] == len(before.classes_) - 2
    assert first not in changed.classes_ and "another" in changed.classes_
    assert "label_changes" in done("info", new)
    assert "Give --forget" in refused("labels", model, "-o", new, code=2)
    assert "expected a label, a tab and a label" in refused(
        "labels", model, "--merge", tmp_path / "gone", "-o", new, code=2
    )
    (tmp_path / "gone").write_text("yak\n")
    assert "no label 'yak'" in refused("labels", model, "--forget", tmp_path / "gone", "-o", new)


def test_class_weights_are_read_as_a_dictionary(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "red", "labels": ["a"]}\n{"text": "red", "labels": ["b"]}\n' * 20)
    (tmp_path / "red.txt").write_text("red\n")
    fit = ("fit", tmp_path / "rows.jsonl", "--model", "one-vs-all", "-o", tmp_path / "model.treemax")
    for heavy in "ab":
        done(*fit, "--set", f"class_weight={{'{heavy}': 9.0}}")
        answer = done("predict", tmp_path / "model.treemax", tmp_path / "red.txt", "--top", 1)
        assert json.loads(answer)["labels"] == [heavy]
    assert "not in y" in refused(*fit, "--set", "class_weight={'c': 2}")


def test_explanations_of_texts_and_rows(folder, tmp_path):
    model, text = folder / "text.treemax", "ripe apple <b>"
    told = treemax.load(model).explain(text, k=2)
    assert done("explain", model, text, "-k", 2) == f"{told}\n"
    assert json.loads(done("explain", model, text, "--format", "json", "-k", 2)) == json.loads(told.to_json())
    page = tmp_path / "page.html"
    assert done("explain", model, text, "--format", "html", "-o", page) == ""
    assert page.read_text().startswith("<!DOCTYPE html>") and "<b>ripe" not in page.read_text()
    other = told.candidates[1].label
    assert f"{other}, probability" in done("explain", model, text, "--label", other)
    rows = folder / "train.txt"
    assert done("explain", model, "--data", rows, "--row", 2).splitlines()[0] in rows.read_text().splitlines()[1]
    assert "does not know the label 'yak'" in refused("explain", model, text, "--label", "yak")
    assert "so there is no row 99,999" in refused("explain", model, "--data", rows, "--row", 99999)
    assert "Give either TEXT or --data" in refused("explain", model, code=2)
    assert done("explain", model, text, "--format", "plot", "-o", tmp_path / "why.svg") == ""
    assert "added to the score" in (tmp_path / "why.svg").read_text()
    assert "--format plot needs --output" in refused("explain", model, text, "--format", "plot", code=2)
    assert "not supported" in refused("explain", model, text, "--format", "plot", "-o", tmp_path / "why.doc")
    numbers = tmp_path / "numbers.treemax"
    OneVsAll().fit(np.eye(3), [3, 4, 5]).save(numbers)
    (tmp_path / "rows.svm").write_text("3 0:1\n4 1:1\n")
    assert "OneVsAll: 4" in done("explain", numbers, "--data", tmp_path / "rows.svm", "--row", 2, "--label", 4)
    assert "labels of the model are integers" in refused(
        "explain", numbers, "--data", tmp_path / "rows.svm", "--label", "x"
    )
    assert "give a row of features with --data" in refused("explain", numbers, "a text")


def test_every_flag_of_the_contract_exists():
    contract = {
        "fit": {"-o", "--model", "--as-published", "--set", "--format", "--jobs"},
        "predict": {"--top"},
        "explain": {"--label", "-k", "--format", "--output"},
        "eval": {"--json"},
        "stream": {"--model", "--as-published", "--json"},
        "info": {"--json"},
        "convert": {"--format"},
        "demo": {"--all"},
        "compile": set(),
    }
    for name, flags in contract.items():
        command = commands.commands[name]
        assert flags <= {flag for parameter in command.params for flag in parameter.opts}, name
        assert done(name, "--help").startswith("Usage:")
    formats = next(parameter for parameter in commands.commands["fit"].params if "--format" in parameter.opts).type
    assert list(formats.choices) == ["auto", *FORMATS]


def test_commands_are_listed_in_the_order_of_use_and_in_whole_sentences():
    listed = done("--help").partition("Commands:\n")[2]
    assert [line.split()[0] for line in listed.splitlines()] == list(commands.commands)
    assert "..." not in listed


@pytest.mark.parametrize("command", ["fit", "stream"])
def test_published_settings_can_be_changed_one_by_one(folder, tmp_path, command):
    model = tmp_path / "model.treemax"
    options = ["--model", "online-label-tree", "--as-published", "--set", "arity=3"]
    done(command, folder / "train.txt", "-o", model, *options)
    assert treemax.load(model).estimator.get_params() == (
        treemax.OnlineLabelTree.as_published(arity=3, n_jobs=1).get_params()
    )


@pytest.mark.slow
def test_the_demo_shows_trees_and_a_path(tmp_path):
    lines = done("demo", "--rows", 3000).splitlines()
    table = lines.index("")
    assert [line.split("  ")[0] for line in lines[table + 3 : table + 6]] == [
        "label-tree", "label-tree, 3 trees", "online-label-tree",
    ]  # fmt: skip
    answer = next(number for number, line in enumerate(lines) if line.startswith("a river in Africa: "))
    assert lines[answer + 1].startswith("  ") and " labels: " in lines[answer + 1]


def test_version_models_and_completion():
    assert treemax.__version__ in done("--version")
    assert "one-vs-all" in json.loads(done("info", "--models", "--json"))
    assert "one-vs-all" in done("info", "--models")
    for shell in ("bash", "zsh", "fish"):
        assert "_TREEMAX_COMPLETE" in done("completion", shell)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-2", -2), ("0.5", 0.5), ("1e-3", 1e-3), ("true", True), ("False", False), ("none", None),
        ("softmax", "softmax"), ("1,2", (1, 2)), ("", ""), ("a=b", "a=b"),
    ],
)  # fmt: skip
def test_values_of_settings(text, value):
    assert read_value(text) == value and type(read_value(text)) is type(value)


@pytest.mark.parametrize("numbers", [False, True])
def test_fit_with_a_hierarchy(tmp_path, numbers):
    data, edges, model = tmp_path / "data.vw", tmp_path / "edges.tsv", tmp_path / "model.treemax"
    names = ["0", "1", "2", "3"] if numbers else ["cat", "dog", "owl", "tit"]
    kind = "svmlight" if numbers else "vw"
    if numbers:
        data.write_text("".join(f"{name} {name}:1\n" for name in names * 10))
    else:
        data.write_text("".join(f"{name} | f{name}\n" for name in names * 10))
    edges.write_text("".join(f"{'mammal' if i < 2 else 'bird'}\t{name}\r\n\n" for i, name in enumerate(names)))
    arguments = ("fit", data, "-o", model, "--format", kind, "--hierarchy", edges)
    done(*arguments, "--model", "label-tree")
    tree = treemax.load(model).model_.trees[0].tree
    assert tree.depth == 2 and tree.parent[tree.leaf_of].tolist() == [1, 1, 2, 2]
    assert treemax.load(model).taxonomy_.n_levels == 2
    done(*arguments, "--model", "one-vs-all")  # remembers it, for predict and eval
    assert treemax.load(model).taxonomy_.n_levels == 2
    done(*arguments, "--model", "label-tree", "--set", "tree=complete")
    assert treemax.load(model).tree == "complete" and treemax.load(model).taxonomy_.n_levels == 2
    assert "Model: LabelTree, for --hierarchy" in treemax_command(*arguments).stderr
    edges.write_text("mammal\tcat\nbird owl\n")
    assert f"{edges}:2: expected parent, tab, child" in refused(*arguments, "--model", "label-tree")


def test_fit_says_which_loss_it_chose(tmp_path):
    data = tmp_path / "data.vw"
    data.write_text("a | x\nb | y\n" * 10)
    result = treemax_command("fit", data, "-o", tmp_path / "m.treemax", "--format", "vw", "--model", "label-tree")
    assert "loss squared_hinge" in result.stderr


def test_fit_with_a_checkpoint(tmp_path):
    data, model, kept = tmp_path / "data.svm", tmp_path / "m.treemax", tmp_path / "kept"
    data.write_text("".join(f"{i % 5} {i % 5}:1\n" for i in range(50)))
    done("fit", data, "-o", model, "--model", "label-tree", "--checkpoint", kept)
    assert treemax.load(model).describe()["labels"] == 5
    assert list(kept.iterdir()) == []
    assert "--checkpoint is for label-tree, softmax-tree, softmax-forest, not for recall-tree" in refused(
        "fit", data, "-o", model, "--model", "recall-tree", "--checkpoint", kept, code=2
    )


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is here")
def test_fit_on_a_cluster_without_ray(tmp_path):
    data = tmp_path / "data.svm"
    data.write_text("0 1:1\n1 2:1\n")
    assert "pip install 'treemax[ray]'" in refused(
        "fit", data, "-o", tmp_path / "m.treemax", "--model", "label-tree", "--cluster", "auto"
    )
