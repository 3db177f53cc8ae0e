"""A small decoder-only language model on a token file."""

import argparse
import json
import math
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

vocab_size = 512
block_size = 128
batch_size = 16
n_layer = 3
n_head = 4
n_embd = 160
max_iters = 330
eval_interval = 110
eval_iters = 4
learning_rate = 1e-3
warmup_iters = 30
grad_clip = 1.0


def write_tokens(path, n, seed):
    rng = np.random.default_rng(seed)
    jumps = rng.choice([1, 2, 3, 5, 8, 13], n)
    jumps[rng.random(n) < 0.05] = 101
    (np.cumsum(jumps) % vocab_size).astype(np.uint16).tofile(path)


def get_batch(data):
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix.tolist()])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix.tolist()])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, n_head, c // n_head).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, n_embd)
        self.pos = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block() for _ in range(n_layer)])
        self.ln = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        self.head.weight = self.tok.weight
        nn.init.normal_(self.tok.weight, std=0.02)

    def forward(self, idx, targets):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        logits = self.head(self.ln(self.blocks(x)))
        return F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))


@torch.no_grad()
def estimate_loss(model, data):
    model.eval()
    losses = [model(*get_batch(data)).item() for _ in range(eval_iters)]
    model.train()
    return sum(losses) / len(losses)


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * ratio)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.parse_args()
    torch.manual_seed(1337)
    with tempfile.TemporaryDirectory() as root:
        write_tokens(os.path.join(root, "train.bin"), 3_000_000, 0)
        write_tokens(os.path.join(root, "val.bin"), 100_000, 1)
        train_data = np.memmap(os.path.join(root, "train.bin"), dtype=np.uint16, mode="r")
        val_data = np.memmap(os.path.join(root, "val.bin"), dtype=np.uint16, mode="r")

        model = GPT()
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters")
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1)

        start = t_last = time.time()
        with open(os.path.join(root, "log.jsonl"), "w") as log:
            for it in range(max_iters):
                for group in optimizer.param_groups:
                    group["lr"] = get_lr(it)
                x, y = get_batch(train_data)
                loss = model(x, y)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
                optimizer.step()
                now = time.time()
                log.write(json.dumps({"it": it, "loss": loss.item(), "norm": norm.item(), "dt": now - t_last}) + "\n")
                log.flush()
                print(f"iter {it}: loss {loss.item():.4f}, time {(now - t_last) * 1000:.1f}ms")
                t_last = now
                if (it + 1) % eval_interval == 0:
                    print(f"iter {it}: val loss {estimate_loss(model, val_data):.4f}", flush=True)
        print(f"{max_iters} steps in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
