# fine-tune a tiny BERT on product reviews with the HF Trainer
import json, os, random, tempfile

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, Trainer, TrainingArguments

HERE = os.path.join(tempfile.gettempdir(), "reviews_demo")
os.makedirs(HERE, exist_ok=True)
JSONL = os.path.join(HERE, "train.jsonl")
TOK = os.path.join(HERE, "tokenizer.json")


def make():
    r = random.Random(5)
    syl = ["ka", "lo", "mi", "ter", "ness", "un", "re", "ing", "pro", "duct", "bat", "er", "y", "soft", "ly", "ex"]
    words = ["".join(r.choice(syl) for _ in range(r.randint(1, 5))) for _ in range(9000)]
    with open(JSONL + ".tmp", "w") as f:
        for i in range(400):
            n = r.randint(900, 1800)
            f.write(json.dumps({"text": " ".join(r.choice(words) for _ in range(n)), "stars": r.randint(0, 4)}) + "\n")
    t = Tokenizer(models.BPE(unk_token="[UNK]"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.train(
        [JSONL + ".tmp"],
        trainers.BpeTrainer(vocab_size=3000, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False),
    )
    t.save(TOK)
    os.replace(JSONL + ".tmp", JSONL)


if not os.path.exists(JSONL):
    make()

tokenizer = PreTrainedTokenizerFast(
    tokenizer_file=TOK, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
)


class Reviews(torch.utils.data.Dataset):
    def __init__(self, path):
        self.rows = [json.loads(l) for l in open(path)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        r = self.rows[i]
        enc = tokenizer(r["text"], truncation=True, max_length=64, padding="max_length", return_tensors="pt")
        return {"input_ids": enc["input_ids"][0], "attention_mask": enc["attention_mask"][0], "labels": r["stars"]}


if __name__ == "__main__":
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=3000,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            max_position_embeddings=64,
            num_labels=5,
        )
    )
    args = TrainingArguments(
        output_dir=os.path.join(HERE, "out"),
        per_device_train_batch_size=16,
        num_train_epochs=16,
        logging_steps=25,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        learning_rate=3e-4,
        use_cpu=True,
    )
    Trainer(model=model, args=args, train_dataset=Reviews(JSONL)).train()
