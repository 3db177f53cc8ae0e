"""Self-distillation: student + EMA teacher, gradient accumulation, saves for fault tolerance."""

import copy, os, tempfile, time
from dataclasses import dataclass, field
import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 12000
    dim: int = 192
    accum: int = 2
    micro: int = 32
    steps: int = 400
    save_every: int = 2
    ema: float = 0.99
    out: str = field(default_factory=lambda: os.path.join(tempfile.gettempdir(), "distill_ckpt"))


class Student(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.emb = nn.EmbeddingBag(c.vocab, c.dim)
        self.net = nn.Sequential(nn.Linear(c.dim, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 256))

    def forward(self, ids):
        return self.net(self.emb(ids))


class Run:
    def __init__(self, c):
        torch.manual_seed(0)
        self.c = c
        self.student = Student(c)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.opt = torch.optim.SGD(self.student.parameters(), 0.05, momentum=0.9)
        self.data = torch.randint(0, c.vocab, (20000, 24))
        os.makedirs(c.out, exist_ok=True)

    def save(self, step):
        state = {
            "step": step,
            "student": self.student.state_dict(),
            "teacher": self.teacher.state_dict(),
            "opt": self.opt.state_dict(),
        }
        tmp = os.path.join(self.c.out, "last.tmp")
        with open(tmp, "wb") as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(tmp, os.path.join(self.c.out, "last.pt"))

    @torch.no_grad()
    def update_teacher(self):
        for t, s in zip(self.teacher.parameters(), self.student.parameters()):
            t.lerp_(s, 1 - self.c.ema)

    def fit(self):
        t0 = time.time()
        for step in range(1, self.c.steps + 1):
            self.opt.zero_grad()
            for _ in range(self.c.accum):
                ids = self.data[torch.randint(len(self.data), (self.c.micro,))]
                drop = ids.masked_fill(torch.rand(ids.shape) < 0.2, 0)
                with torch.no_grad():
                    target = F.softmax(self.teacher(ids) / 0.5, -1)
                loss = F.cross_entropy(self.student(drop), target) / self.c.accum
                loss.backward()
            self.opt.step()
            self.update_teacher()
            if step % self.c.save_every == 0:
                self.save(step)
            if step % 20 == 0:
                print(f"{step} {loss.item():.4f} {step / (time.time() - t0):.2f} steps/s", flush=True)


if __name__ == "__main__":
    Run(Config()).fit()
