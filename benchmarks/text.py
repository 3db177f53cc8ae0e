"""The text case through stoker.Loader: how idle the device is, and what the tokenizer costs the second time.

python benchmarks/text.py [--rounds 3] [--epochs 8] [--json text.json]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import stoker

CASE = Path(__file__).resolve().parents[1] / "examples" / "text"
sys.path.insert(0, str(CASE))


def script(name: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, str(CASE / name), *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)


def train(data: Path, cache: Path, epochs: int) -> dict[str, float]:
    """The case's model and device times, fed by stoker; the loss is read once an epoch."""
    from train import MAX_LENGTH, Model, place  # type: ignore[import-not-found]

    began = time.perf_counter()
    source = stoker.open(data / "train.jsonl", tokenizer=data / "tokenizer.json", length=MAX_LENGTH, cache=cache)
    opened_s = time.perf_counter() - began
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    device, model = place(argparse.Namespace(device="sim"), model, optimizer)
    tokenise_s = [source.spent.tokenise_s]  # type: ignore[attr-defined]
    with stoker.Loader(source, 1, shuffle=True) as loader:
        began, busy = time.perf_counter(), device.busy_s
        for _ in range(epochs):
            total = torch.zeros(())
            for batch in loader:
                ids = batch["tokens"].to(device, non_blocking=True)
                mask = (torch.arange(ids.shape[1]) < batch["lengths"][:, None]).long().to(device, non_blocking=True)
                loss = model(ids, mask, ids)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total = total + loss.detach()
            total.item()
            tokenise_s.append(source.spent.tokenise_s)  # type: ignore[attr-defined]
        wall_s = time.perf_counter() - began
        wait_s = loader.stats().consumer_wait_s
    return {
        "idle_share": 1 - (device.busy_s - busy) / wall_s,
        "wait_share": wait_s / wall_s,
        "opened_s": opened_s,
        "tokenise_first_s": tokenise_s[0],
        "tokenise_later_s": tokenise_s[-1] - tokenise_s[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    slow, fast, again = [], [], []
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        script("make_data.py", "--out", str(folder / "data"))
        for number in range(options.rounds):
            script("train.py", "--data", str(folder / "data"), "--out", str(folder / "run"), "--epochs", "1")
            slow.append(json.loads((folder / "run" / "metrics.json").read_text())["device_idle_share"])
            fast.append(train(folder / "data", folder / f"cache{number}", options.epochs))
            again.append(train(folder / "data", folder / f"cache{number}", 1))
    middle = {key: statistics.median(run[key] for run in fast) for key in fast[0]}
    print("| text | |\n|---|---|")
    print(f"| device idle, the slow script | {statistics.median(slow):.1%} |")
    print(f"| device idle, through stoker.Loader | {middle['idle_share']:.1%} |")
    print(f"| of that time, waiting for batches | {middle['wait_share']:.2%} |")
    print(f"| in the tokenizer when opened first | {middle['tokenise_first_s'] * 1e3:.1f} ms |")
    print(f"| in the tokenizer in all epochs after | {middle['tokenise_later_s'] * 1e3:.1f} ms |")
    later = max(run["tokenise_first_s"] for run in again)
    print(f"| in the tokenizer when opened again | {later * 1e3:.1f} ms |")
    if options.json:
        options.json.write_text(json.dumps({"slow_idle": slow, "stoker": fast, "again": again}, indent=2))


if __name__ == "__main__":
    main()
