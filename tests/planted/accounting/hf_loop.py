"""Hugging Face's Trainer with gradient accumulation, evaluation and checkpoints."""

import time
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Data(Dataset[Any]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, i: int) -> Any:
        time.sleep(0.002)
        ids = torch.randint(0, 100, (16,))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": i % 2}


if __name__ == "__main__":
    small: Any = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    bert: Any = BertForSequenceClassification
    model = bert(BertConfig(vocab_size=100, **small))
    arguments = TrainingArguments(
        "out",
        num_train_epochs=2,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        gradient_accumulation_steps=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Data(640), eval_dataset=Data(96))
    trainer.train()
    print("DONE", trainer.state.global_step)
