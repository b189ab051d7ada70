"""omikuji: Parabel-like forests in Rust. It trains from a file, and predicts one row a call: its batch is a loop.

The file is read before the clock starts. Settings are its hyper-parameters (n_trees, cluster_k, ...).
"""

from __future__ import annotations

ENVIRONMENT = "omikuji"
SYSTEMS = {"omikuji": {"n_trees": 3}, "omikuji-1": {"n_trees": 1}}


def prepare(data, settings):
    data.write_lines("train.xmc", _lines(data))


def _lines(data):
    yield f"{data.n_rows('train')} {data.n_features} {data.n_labels}\n"
    for labels, pairs in zip(data.label_lists("train"), data.pairs("train")):
        yield ",".join(map(str, labels)) + "".join(f" {index}:{value:.7g}" for index, value in pairs) + "\n"


def load(data, settings):
    # The first half of Model.train_on_data, which reads and trains in one go.
    from omikuji import _ThreadPoolHandle, ffi, lib

    pool = _ThreadPoolHandle(settings["threads"])
    data_set = lib.load_omikuji_data_set(ffi.new("char[]", data.path("train.xmc").encode()), pool.ptr)
    if data_set == ffi.NULL:
        raise RuntimeError("omikuji could not read its training file")
    return ffi.gc(data_set, lib.free_omikuji_data_set), pool


def train(inputs, settings, folder):
    from omikuji import Model, ffi, lib

    data_set, pool = inputs
    parameters = Model.default_hyper_param()
    for name, value in settings.items():
        if name != "threads":
            setattr(parameters, name, value)
    model = lib.train_omikuji_model(data_set, parameters, pool.ptr)
    if model == ffi.NULL:
        raise RuntimeError("omikuji failed to train")
    return Model(model)


def save(model, folder):
    model.save(str(folder))


def restore(folder, data, settings):
    from omikuji import Model

    model = Model.load(str(folder))
    model.init_prediction_thread_pool(settings["threads"])
    model.densify_weights(0.05)  # its documented way to fast prediction: three times faster, for some memory
    return model


def rows(model, data, settings):
    return list(data.pairs("test"))


def single(rows, i):
    return rows[i]


def predict_one(model, row, k):
    return model.predict(row, top_k=k)


def predict_batch(model, rows, k):
    return [model.predict(row, top_k=k) for row in rows]


def labels(answers):
    return [[label for label, _ in answer] for answer in answers]


def scores(answers):
    return [answer[0][1] if answer else 0.0 for answer in answers]
