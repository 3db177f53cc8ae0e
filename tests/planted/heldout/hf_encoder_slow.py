"""Small BERT-style classifier on support tickets with the Hugging Face Trainer."""

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

WORK = Path("data") / "hf_encoder"
MAX_LEN = 160


def tickets(n=8000, vocab=6000):
    f = WORK / "tickets.parquet"
    if not f.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(1)
        lens = np.clip(rng.lognormal(3.3, 0.7, n).astype(int), 6, MAX_LEN)
        ids = [rng.integers(5, vocab, k).tolist() for k in lens]
        pq.write_table(pa.table({"input_ids": ids, "label": [int(sum(x[:5]) % 3) for x in ids]}), f)
    return pq.read_table(f)


class Tickets(Dataset):
    def __init__(self, table):
        col = table["input_ids"].combine_chunks()
        self.values = torch.from_numpy(col.values.to_numpy())
        self.offsets = col.offsets.to_numpy().tolist()
        self.labels = table["label"].to_pylist()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.values[self.offsets[i] : self.offsets[i + 1]], "labels": self.labels[i]}


@dataclass
class TicketCollator:
    max_len: int

    def __call__(self, feats):
        ids = torch.zeros(len(feats), self.max_len, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for r, f in enumerate(feats):
            n = len(f["input_ids"])
            ids[r, :n] = f["input_ids"]
            mask[r, :n] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([f["labels"] for f in feats])}


class Clock(TrainerCallback):
    def __init__(self):
        self.t = []

    def on_step_end(self, args, state, control, **kw):
        self.t.append(time.perf_counter())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--batch", type=int, default=32)
    a = ap.parse_args()
    torch.set_num_threads(1)
    cfg = BertConfig(
        vocab_size=6000,
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=MAX_LEN,
        num_labels=3,
    )
    clock = Clock()
    targs = TrainingArguments(
        output_dir=str(WORK / "out"),
        max_steps=a.steps,
        per_device_train_batch_size=a.batch,
        learning_rate=3e-4,
        logging_steps=100,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_num_workers=1,
        seed=3,
    )
    tr = Trainer(
        model=BertForSequenceClassification(cfg),
        args=targs,
        train_dataset=Tickets(tickets()),
        data_collator=TicketCollator(MAX_LEN),
        callbacks=[clock],
    )
    tr.train()
    k = (clock.t[-1] - clock.t[3]) / (len(clock.t) - 4)
    print(f"{1 / k:.2f} steps/s, {k * 1e3:.1f} ms/step")


if __name__ == "__main__":
    main()
