"""Who won? A small transformer reads the moves of a chess game."""

import argparse
import random
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


class Games(torch.utils.data.Dataset):
    """Most games are blitz and short; some are endless endgames."""

    def __init__(self, count, seed):
        rng = random.Random(seed)
        g = torch.Generator().manual_seed(seed)
        self.moves, self.result = [], []
        for _ in range(count):
            plies = min(int(rng.lognormvariate(3.3, 0.85)) + 8, 400)
            self.moves.append(torch.randint(1, 500, (plies,), generator=g))
            self.result.append(int(self.moves[-1].float().mean() > 250))

    def __len__(self):
        return len(self.moves)

    def __getitem__(self, i):
        return self.moves[i], self.result[i]


def collate(games):
    moves, result = zip(*games)
    return {"moves": pad_sequence(moves, batch_first=True), "result": torch.tensor(result)}


class Bucketed(torch.utils.data.Sampler):
    """Games of about the same length together: sort within pools of 50 batches, then shuffle the batches."""

    def __init__(self, lengths, batch_size):
        self.lengths, self.batch_size = lengths, batch_size

    def __iter__(self):
        order, pool = torch.randperm(len(self.lengths)).tolist(), self.batch_size * 50
        batches = []
        for lo in range(0, len(order), pool):
            part = sorted(order[lo : lo + pool], key=self.lengths.__getitem__)
            batches += [part[i : i + self.batch_size] for i in range(0, len(part), self.batch_size)]
        random.shuffle(batches)
        return iter(batches)

    def __len__(self):
        return -(-len(self.lengths) // self.batch_size)


class Reader(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(500, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 2)

    def forward(self, moves):
        pad = moves == 0
        x = self.encoder(self.embed(moves), src_key_padding_mask=pad)
        x = x.masked_fill(pad[..., None], 0).sum(1) / (~pad).sum(1, keepdim=True)
        return self.head(x)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--games", type=int, default=3000)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--max-seconds", type=float, default=100)
    ap.add_argument("--fixed", action="store_true")
    a = ap.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train = Games(a.games, seed=1)
    if a.fixed:
        sampler = Bucketed([len(m) for m in train.moves], a.batch_size)
        loader = DataLoader(train, batch_sampler=sampler, collate_fn=collate)
    else:
        loader = DataLoader(train, batch_size=a.batch_size, shuffle=True, collate_fn=collate)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    start, epoch, step = time.time(), 0, 0
    while time.time() - start < a.max_seconds:
        t = time.time()
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["moves"]), batch["result"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            if time.time() - start > a.max_seconds:
                break
        print(f"epoch {epoch} took {time.time() - t:.1f} s", flush=True)
        epoch += 1
