"""Make a few short texts to fine-tune on, and a tokenizer with a vocabulary of a language model's size."""

import itertools
import json
import string
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import folder

TRAIN_TEXTS, VAL_TEXTS = 25, 5
WORDS = 120
VOCABULARY = 128_000  # that of a current language model
TOKENIZER_BYTES = 8_000_000


def plan(scale: float) -> folder.Sizes:
    train = max(1, round(TRAIN_TEXTS * scale))
    val = max(1, round(VAL_TEXTS * scale))
    return {"files": 3, "train": train, "val": val, "bytes": TOKENIZER_BYTES + (train + val) * WORDS * 8}


def write(out: Path, sizes: folder.Sizes, seed: int, tick: folder.Tick) -> None:
    (out / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    tick()
    random = np.random.default_rng(seed)
    words = ["".join(random.choice(list(string.ascii_lowercase), random.integers(2, 9))) for _ in range(2000)]
    for split in ("train", "val"):
        lines = [json.dumps({"text": " ".join(random.choice(words, WORDS))}) for _ in range(sizes[split])]
        (out / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
        tick()


def _tokenizer() -> dict[str, object]:
    """Byte-pair merges made by rule, letters to pairs to triples to fours, until the vocabulary is full."""
    letters = string.ascii_lowercase
    pairs = ["".join(pair) for pair in itertools.product(letters, repeat=2)]
    merges = [(pair[0], pair[1]) for pair in pairs]
    merges += itertools.product(pairs, letters)
    merges += itertools.islice(itertools.product(pairs, pairs), VOCABULARY - len(letters) - 1 - len(merges))
    tokens = ["<unk>", *letters, *("".join(merge) for merge in merges)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [" ".join(merge) for merge in merges],
        },
    }


if __name__ == "__main__":
    folder.make("text", __doc__, plan, write)
