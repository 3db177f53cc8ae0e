"""Fine-tune a small language classifier on a few hundred documents, for many epochs."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from stoker import sim

WORDS = 2000


class Scale(NamedTuple):
    documents: int
    words: int
    batch: int
    length: int
    device_s: float
    epochs: int


SCALES = {"small": Scale(240, 2500, 4, 256, 0.010, 15), "large": Scale(320, 5000, 8, 512, 0.030, 18)}


def make_documents(path: Path, scale: Scale) -> list[dict[str, Any]]:
    if not path.exists():
        draw = random.Random(0)
        letters = "etaoinshrdlucmfwypvbgkjqxz"
        words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(WORDS)]
        with path.open("w") as file:
            for i in range(scale.documents):
                record = {"text": " ".join(draw.choices(words, k=scale.words)), "label": i % 4}
                file.write(json.dumps(record) + "\n")
    return [json.loads(line) for line in path.read_text().splitlines()]


def learn_vocabulary(texts: list[str]) -> Tokenizer:
    vocabulary = Tokenizer(models.BPE(unk_token="?"))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    vocabulary.train_from_iterator(
        texts[:40], trainers.BpeTrainer(vocab_size=600, special_tokens=["?"], show_progress=False)
    )
    return vocabulary


class Documents(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, records: list[dict[str, Any]], vocabulary: Tokenizer, length: int) -> None:
        self.records, self.vocabulary, self.length = records, vocabulary, length
        self.ids = [self.encode(record["text"]) for record in records]

    def encode(self, text: str) -> torch.Tensor:
        return torch.tensor(self.vocabulary.encode(text).ids[: self.length])

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        record = self.records[index]
        return self.ids[index], record["label"]


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(600, 8)
        self.score = nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.score(self.embed(ids).mean(dim=1))


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    records = make_documents(root / "documents.jsonl", scale)
    dataset = Documents(records, learn_vocabulary([record["text"] for record in records]), scale.length)
    loader = DataLoader(dataset, batch_size=scale.batch, shuffle=True, drop_last=True)
    device = sim.Device(forward=0.4 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.1 * scale.device_s)
    reader = Reader()
    optimizer = torch.optim.AdamW(reader.parameters(), lr=3e-3)
    device.place(reader, optimizer)

    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for ids, labels in loader:
            if step >= args.steps:
                break
            scores = reader(ids.to(device, non_blocking=True))
            loss = functional.cross_entropy(scores, labels.to(device, non_blocking=True))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        print(f"epoch {epoch}: {loss.item():.3f}")
    print(f"{step} steps in {time.perf_counter() - began:.2f} s")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=["small", "large"], default="small")
    parser.add_argument("--steps", type=int, default=sys.maxsize, help="stop after this many optimizer steps")
    parser.add_argument("--epochs", type=int, default=None, help="passes over the data; the scale's own by default")
    parser.add_argument("--data", type=Path, default=None, help="where the data goes; a temporary directory by default")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        main(options, options.data or Path(scratch))
