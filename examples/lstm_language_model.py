"""Train an LSTM language model whose output layer is a TreeSoftmax.

    python examples/lstm_language_model.py                      WordNet's definitions, a minute or two on a CPU
    python examples/lstm_language_model.py --text book.txt      a text of your own, one sentence a line
    python examples/lstm_language_model.py --output flat        the same with nn.Linear and cross-entropy, to compare

Needs the extra: pip install treemax[torch].
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from treemax.datasets import load_wordnet
from treemax.torch import TreeSoftmax

STREAMS, LENGTH = 32, 16  # texts read side by side, and words of each in a batch
END, UNKNOWN = "<end>", "<unknown>"


class FlatSoftmax(nn.Module):
    """What TreeSoftmax takes the place of."""

    def __init__(self, size: int, n_words: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, n_words)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.linear(hidden), target)

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        found = torch.log_softmax(self.linear(hidden), dim=-1).topk(k)
        return found.values, found.indices


class LanguageModel(nn.Module):
    """Embedding, LSTM, and the output layer, which gives the loss in training and the best words afterwards."""

    def __init__(self, n_words: int, size: int, output: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_words, size)
        self.lstm = nn.LSTM(size, size, batch_first=True)
        self.output = output

    def forward(self, words: Tensor, following: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        hidden, state = self.lstm(self.embedding(words), state)
        return self.output(hidden.flatten(0, 1), following.flatten()), state

    @torch.no_grad()
    def next_words(self, words: Tensor, k: int) -> tuple[Tensor, Tensor]:
        hidden, _ = self.lstm(self.embedding(words[None]))
        return self.output.topk(hidden[0, -1], k)


def sentences(text: Path | None) -> list[list[str]]:
    lines = load_wordnet()[0].texts if text is None else text.read_text().splitlines()
    return [[*re.findall(r"\w+|[^\w\s]", line.lower()), END] for line in lines if line.strip()]


def batches(numbers: list[int], device: str) -> list[tuple[Tensor, Tensor]]:
    """Words and those that follow them, in pieces that continue each other."""
    length = len(numbers) // STREAMS
    text = torch.tensor(numbers[: STREAMS * length], device=device).view(STREAMS, length)
    starts = range(0, length - LENGTH, LENGTH)
    return [(text[:, at : at + LENGTH], text[:, at + 1 : at + 1 + LENGTH]) for at in starts]


def train(model: LanguageModel, data: list[tuple[Tensor, Tensor]], passes: int, rate: float) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    for number in range(1, passes + 1):
        start, total, state = time.perf_counter(), 0.0, None
        for words, following in data:
            loss, state = model(words, following, state)
            state = tuple(part.detach() for part in state)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += float(loss.detach())
        seconds = time.perf_counter() - start
        print(f"pass {number}: training loss {total / len(data):.3f}, {seconds:.1f} s", flush=True)


@torch.no_grad()
def perplexity(model: LanguageModel, data: list[tuple[Tensor, Tensor]]) -> float:
    model.eval()
    total, state = 0.0, None
    for words, following in data:
        loss, state = model(words, following, state)
        total += float(loss)
    return math.exp(total / len(data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a file with one sentence a line; WordNet without")
    parser.add_argument("--output", choices=["tree", "flat"], default="tree")
    parser.add_argument("--sentences", type=int, default=20_000, help="how many to use; the last tenth is the test")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--rate", type=float, default=0.005)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.manual_seed(0)

    text = sentences(options.text)[: options.sentences]
    held_out = max(1, len(text) // 10)
    counts = Counter(word for sentence in text[:-held_out] for word in sentence)
    words = [UNKNOWN, *(word for word, count in counts.most_common() if count > 1)]
    number = {word: i for i, word in enumerate(words)}
    training, test = (
        batches([number.get(word, 0) for sentence in part for word in sentence], options.device)
        for part in (text[:-held_out], text[-held_out:])
    )

    if not test:
        raise SystemExit(f"the text is too short: its last tenth must have more than {STREAMS * LENGTH} words.")

    frequency = [sum(count == 1 for count in counts.values()), *(counts[word] for word in words[1:])]
    if options.output == "tree":
        output: nn.Module = TreeSoftmax(options.size, len(words), counts=frequency)
    else:
        output = FlatSoftmax(options.size, len(words))
    print(f"{sum(counts.values()):,} words of training, {len(words):,} classes\n{output}")
    model = LanguageModel(len(words), options.size, output).to(options.device)
    train(model, training, options.passes, options.rate)
    print(f"perplexity of the test: {perplexity(model, test):.1f}")

    for beginning in ("a person who", "relating to the", "the act of"):
        known = torch.tensor([number.get(word, 0) for word in beginning.split()], device=options.device)
        scores, classes = model.next_words(known, 5)
        best = ", ".join(f"{words[c]} {math.exp(s):.2f}" for s, c in zip(scores.tolist(), classes.tolist()))
        print(f"{beginning} ...: {best}")


if __name__ == "__main__":
    main()
