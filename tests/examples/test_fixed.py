"""The fixed scripts: they train, and they train on the same thing as the slow ones."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from examples.cases import EXAMPLES, run

pytestmark = pytest.mark.timeout(1000)  # real programs: a busy machine takes minutes over seconds

FIXED = sorted(path.parent.name for path in EXAMPLES.glob("*/train_fixed.py"))
QUICK = {
    "records": ["--steps", "6", "--batch-size", "64", "--val-steps", "1"],
    "events": ["--batch-size", "16", "--steps", "6"],
    "images": ["--batch-size", "16", "--epochs", "1"],
    "text": ["--epochs", "2"],
    "volumes": ["--steps", "6", "--val-steps", "1"],
}

# Both ways from the same events and the same parameters, and every event of an epoch.
EVENTS = """
import sys
from pathlib import Path
import numpy as np, torch, train, train_fixed

folder = Path(sys.argv[1])
dataset = train.EventDataset(folder)
epoch = train_fixed.EventBatches(folder, list(range(16)), 50, True, 0)
seen, wide = [], epoch.batch
epoch.batch = lambda events, held: (seen.append(events), wide(events, held))[1]
batches = list(epoch)
assert len(batches) == len(epoch)
assert sorted(np.concatenate(seen).tolist()) == list(range(len(dataset)))
first_order = np.concatenate(seen).tolist()
assert first_order != sorted(first_order)
torch.manual_seed(0)
slow, fast = train.Model(), train_fixed.VectorisedModel()
fast.load_state_dict(slow.state_dict())
for events, batch in list(zip(seen, batches))[:3]:
    wanted = train.collate([dataset[int(event)] for event in events])
    for name in ("event_sensors", "sensor_pulses", "direction"):
        assert torch.equal(wanted[name].double(), batch[name].double()), name
    inputs = [[part[name] for name in ("event_sensors", "sensor_pulses", "pulses")] for part in (wanted, batch)]
    assert torch.allclose(slow(*inputs[0]), fast(*inputs[1]), atol=1e-5)
seen.clear()
list(epoch)
assert np.concatenate(seen).tolist() != first_order
print("same")
"""
TEXT = """
import sys
from pathlib import Path
import torch, train, train_fixed

folder = Path(sys.argv[1])
slow = train.TextDataset(folder / "train.jsonl", folder / "tokenizer.json")
ids, mask = train_fixed.tokenize_all(folder / "train.jsonl", folder / "tokenizer.json").tensors
model = train.Model()
for number in range(len(slow)):
    sample = {name: torch.tensor([values]) for name, values in slow[number].items()}
    kept = mask[number].bool()
    assert ids[number][kept].tolist() == sample["input_ids"][0].tolist()
    row = slice(number, number + 1)
    assert torch.allclose(model(**sample), model(ids[row], mask[row], ids[row]), atol=1e-5)
print("same")
"""


@pytest.mark.parametrize("case", FIXED)
def test_it_trains_on_the_simulated_device(case: str, data_of: Callable[[str], Path], tmp_path: Path) -> None:
    where = ["--data", str(data_of(case)), "--out", str(tmp_path / "run")]
    done = run(EXAMPLES / case / "train_fixed.py", *where, *QUICK[case], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["device_busy_s"] > 0
    assert 0 <= metrics["wait_share"] <= 1
    checkpoint = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert all(torch.isfinite(tensor).all() for tensor in checkpoint["model"].values())


@pytest.mark.parametrize(("case", "code"), [("events", EVENTS), ("text", TEXT)])
def test_a_batch_gives_the_same_numbers_as_in_the_slow_script(
    case: str, code: str, data_of: Callable[[str], Path], tmp_path: Path
) -> None:
    script = tmp_path / "compare.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(EXAMPLES / case)!r})\n{code}")
    done = run(script, data_of(case), cwd=tmp_path)
    assert done.stdout.strip() == "same", done.stderr
