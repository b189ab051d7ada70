"""An LSTM over the Penn Treebank, and the states from which its softmax predicts the next word.

    python lstm_states.py train DATA WEIGHTS.npz     learn, on a GPU if there is one; writes the weights
    python lstm_states.py states DATA WEIGHTS.npz FOLDER     the states of train, valid and test, as arrays

It runs in the environment `torch` of the benchmarks and imports nothing of the harness. DATA is the folder with
`train.txt.gz`, `valid.txt.gz` and `test.txt.gz`. The recipe is that of section 5.3.1 and appendix C of the
softmax-tree paper: two layers of 150, embeddings of 256, sequences of 20, and a rate of 20 that is divided by 4 when the
validation set gets no better. Dropout was chosen from 0.2, 0.35 and 0.5 on the validation set; batch and clipping are the usual ones.
"""

from __future__ import annotations

import argparse
import gzip
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

EMBEDDING, HIDDEN, LAYERS, SEQUENCE = 256, 150, 2, 20
BATCH, CLIP, RATE, EPOCHS, DROPOUT = 20, 0.25, 20.0, 35, 0.2
STREAMS = 100  # parts of a text whose states are computed side by side


class Language(nn.Module):
    """Embedding, LSTM and softmax, with dropout between them."""

    def __init__(self, n_words: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Embedding(n_words, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, LAYERS, dropout=dropout)
        self.softmax = nn.Linear(HIDDEN, n_words)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.softmax.weight, -0.1, 0.1)
        nn.init.zeros_(self.softmax.bias)

    def states(self, words, memory=None):
        """The state after each word, from which the next is predicted."""
        found, memory = self.lstm(self.dropout(self.embedding(words)), memory)
        return self.dropout(found), memory


def sentences(folder: Path, part: str) -> list[str]:
    """All words of a part one after the other; a line ends with <eos>."""
    with gzip.open(folder / f"{part}.txt.gz", "rt", encoding="utf-8") as lines:
        return [word for line in lines for word in [*line.split(), "<eos>"]]


def read(folder: Path) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The parts as numbers of words, and the words: all of the training part, in alphabetic order."""
    texts = {part: sentences(folder, part) for part in ("train", "valid", "test")}
    words = sorted(set(texts["train"]))
    number = {word: i for i, word in enumerate(words)}
    return {part: torch.tensor([number[word] for word in text]) for part, text in texts.items()}, words


def side_by_side(text: torch.Tensor, n: int) -> torch.Tensor:
    """A text cut into n streams, [length, n]; what is left over at the end is dropped."""
    length = len(text) // n
    return text[: length * n].view(n, length).t().contiguous()


@torch.no_grad()
def perplexity(model: Language, text: torch.Tensor) -> float:
    """Over all words but the first, as one stream."""
    model.eval()
    memory, total = None, 0.0
    for start in range(0, len(text) - 1, 2000):
        some = text[start : start + 2001]
        states, memory = model.states(some[:-1, None], memory)
        total += nn.functional.cross_entropy(model.softmax(states[:, 0]), some[1:], reduction="sum").item()
    return math.exp(total / (len(text) - 1))


def epoch(model: Language, streams: torch.Tensor, rate: float) -> None:
    model.train()
    memory = None
    for start in range(0, len(streams) - 1, SEQUENCE):
        end = min(start + SEQUENCE, len(streams) - 1)
        states, memory = model.states(streams[start:end], memory)
        memory = tuple(part.detach() for part in memory)
        scores = model.softmax(states.flatten(0, 1))
        loss = nn.functional.cross_entropy(scores, streams[start + 1 : end + 1].flatten())
        model.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        with torch.no_grad():
            for weights in model.parameters():
                weights -= rate * weights.grad


def train(folder: Path, weights: Path, dropout: float, epochs: int) -> None:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    texts, words = read(folder)
    parts = {part: text.to(device) for part, text in texts.items()}
    model = Language(len(words), dropout).to(device)
    streams, rate, best = side_by_side(parts["train"], BATCH), RATE, math.inf
    began = time.perf_counter()
    for number in range(1, epochs + 1):
        epoch(model, streams, rate)
        found = perplexity(model, parts["valid"])
        print(
            f"epoch {number}: rate {rate:g}, valid perplexity {found:.2f}, {time.perf_counter() - began:.0f} s",
            flush=True,
        )
        if found < best:
            best = found
            kept = {name: value.detach().cpu().numpy().copy() for name, value in model.state_dict().items()}
            np.savez(weights, **kept)
        else:
            rate /= 4
            model.load_state_dict({name: torch.from_numpy(value) for name, value in kept.items()})
    model.load_state_dict({name: torch.from_numpy(value) for name, value in kept.items()})
    print(f"best: valid {best:.2f}, test {perplexity(model, parts['test']):.2f}")


@torch.no_grad()
def write_states(folder: Path, weights: Path, out: Path) -> None:
    """X_PART: the state after each word, y_PART: the word that follows; and the softmax of the LSTM itself.

    Valid and test are one stream each, as they are judged; the training text is many, for speed.
    """
    parts, words = read(folder)
    model = Language(len(words), 0.0).eval()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in np.load(weights).items()})
    out.mkdir(parents=True, exist_ok=True)
    for part, text in parts.items():
        streams = side_by_side(text, STREAMS if part == "train" else 1)
        memory, found = None, []
        for start in range(0, len(streams) - 1, 1000):
            states, memory = model.states(streams[start : min(start + 1000, len(streams) - 1)], memory)
            found.append(states)
        rows = torch.cat(found).transpose(0, 1).reshape(-1, HIDDEN)
        np.save(out / f"X_{part}.npy", np.ascontiguousarray(rows.numpy()))
        np.save(out / f"y_{part}.npy", streams[1:].t().reshape(-1).numpy())
        print(f"{part}: {len(rows):,} states, perplexity {perplexity(model, text):.2f}", flush=True)
    np.save(out / "coef.npy", model.softmax.weight.numpy())
    np.save(out / "bias.npy", model.softmax.bias.numpy())
    (out / "words.txt").write_text("\n".join(words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("train", "states"))
    parser.add_argument("data", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path, nargs="?", help="the folder of the states")
    parser.add_argument("--dropout", type=float, default=DROPOUT)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    if options.work == "train":
        train(options.data, options.weights, options.dropout, options.epochs)
    elif options.out is None:
        parser.error("states needs the folder to write them to")
    else:
        write_states(options.data, options.weights, options.out)


if __name__ == "__main__":
    main()
