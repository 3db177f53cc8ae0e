"""Next-event model over server log sessions. Sessions of one length are batched together, so nothing is padded."""

import random
import sys
import time
from collections import defaultdict

import torch
import torch._dynamo
from torch import nn

FIXED = "--fixed" in sys.argv
torch._dynamo.config.recompile_limit = 512  # "torch._dynamo hit config.recompile_limit (8)"
torch._dynamo.config.accumulated_recompile_limit = 4096
VOCAB, DIM, BATCH = 300, 32, 8


class NextEvent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.mlp = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, events):
        x = self.embed(events)
        x = x + nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), is_causal=True)
        return self.out(x + self.mlp(x))


def sessions(count):
    rng = random.Random(5)
    by_length = defaultdict(list)
    for _ in range(count):
        length = 12 + min(int(rng.expovariate(1 / 25)), 90)
        state, events = rng.randrange(VOCAB), []
        for _ in range(length):
            state = (state * 7 + rng.choice([1, 1, 1, 5])) % VOCAB
            events.append(state)
        by_length[length].append(events)
    return by_length


def batches(by_length, rng):
    out = []
    for rows in by_length.values():
        rng.shuffle(rows)
        out += [torch.tensor(rows[i : i + BATCH]) for i in range(0, len(rows), BATCH)]
    rng.shuffle(out)
    return out


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = random.Random(0)
    data = sessions(3500)
    model = NextEvent()
    # inductor needs a newer gcc than the cluster has
    compiled = torch.compile(model, backend="aot_eager", dynamic=True if FIXED else False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    began, step = time.time(), 0
    for epoch in range(100):
        total, t = 0.0, time.time()
        epoch_batches = batches(data, rng)
        for i, batch in enumerate(epoch_batches):
            logits = compiled(batch[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            step += 1
            if step % 20 == 0:
                print(
                    f"epoch {epoch} step {step} loss {total / (i + 1):.3f} {(time.time() - t) / (i + 1) * 1e3:.0f} ms/step",
                    flush=True,
                )
            if time.time() - began > 110:
                return


if __name__ == "__main__":
    main()
