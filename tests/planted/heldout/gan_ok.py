"""Toy GAN on spectra. Keeps a detailed record of training in CSV and JSON lines."""

import csv, json, logging, os, tempfile, time
import numpy as np
import torch
from torch import nn

LOG_EVERY = 100


class Recorder:
    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.csv = open(os.path.join(folder, "scalars.csv"), "w", newline="")
        self.rows = csv.writer(self.csv)
        self.json = open(os.path.join(folder, "hist.jsonl"), "w")
        self.log = logging.getLogger("gan")
        self.log.propagate = False
        self.log.handlers = [logging.FileHandler(os.path.join(folder, "train.log"), mode="w")]
        self.log.setLevel(logging.INFO)

    def histogram(self, step, modules):
        rec = {"step": step}
        for prefix, m in modules.items():
            for name, p in m.named_parameters():
                for kind, t in (("w", p.detach()), ("g", p.grad)):
                    if t is None:
                        continue
                    c, edges = np.histogram(t.numpy().ravel(), bins=30)
                    rec[f"{prefix}.{name}.{kind}"] = [c.tolist(), [round(float(e), 6) for e in edges]]
        self.json.write(json.dumps(rec) + "\n")
        self.json.flush()
        os.fsync(self.json.fileno())

    def scalars(self, step, **kw):
        self.rows.writerow([step, *kw.values()])
        self.csv.flush()
        os.fsync(self.csv.fileno())
        self.log.info("step %d %s", step, " ".join(f"{k}={v:.4f}" for k, v in kw.items()))


def block(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.LeakyReLU(0.2))


def main():
    torch.manual_seed(0)
    G = nn.Sequential(block(32, 192), block(192, 192), nn.Linear(192, 128))
    D = nn.Sequential(block(128, 192), block(192, 192), nn.Linear(192, 1))
    og = torch.optim.Adam(G.parameters(), 2e-4, betas=(0.5, 0.99))
    od = torch.optim.Adam(D.parameters(), 2e-4, betas=(0.5, 0.99))
    bce = nn.BCEWithLogitsLoss()
    real_all = torch.sin(torch.linspace(0, 12, 128) * (0.5 + torch.rand(8000, 1))) + 0.05 * torch.randn(8000, 128)
    rec = Recorder(os.path.join(tempfile.gettempdir(), "gan_logs"))
    B, t0 = 128, time.time()
    for step in range(1, 2401):
        real = real_all[torch.randint(8000, (B,))]
        fake = G(torch.randn(B, 32))
        d_loss = bce(D(real), torch.ones(B, 1)) + bce(D(fake.detach()), torch.zeros(B, 1))
        od.zero_grad()
        d_loss.backward()
        od.step()
        g_loss = bce(D(fake), torch.ones(B, 1))
        og.zero_grad()
        g_loss.backward()
        og.step()
        if step % LOG_EVERY == 0:
            rec.scalars(step, d=d_loss.item(), g=g_loss.item())
            rec.histogram(step, {"G": G, "D": D})
        if step % 50 == 0:
            print(
                f"{step} d {d_loss.item():.3f} g {g_loss.item():.3f} {step / (time.time() - t0):.1f} steps/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
