"""Scripts whose own objects object to being looked at train as they would alone."""

from pathlib import Path

import pytest

from cli.doctor_program import doctor
from scripts import LIGHT

SCRIPT = (
    LIGHT
    + """
import pickle
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

data = TensorDataset(torch.randn(64, 4))


def train(name, loader, take=lambda batch: batch, model=None):
    model = model or nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    steps, max_epochs = 0, float("inf")  # its number of epochs has no end
    for epoch in range(2):
        for batch in loader:
            optimizer.zero_grad()
            model(take(batch)).square().mean().backward()
            optimizer.step()
            steps += 1
    print(name, steps)


train("plain", DataLoader(data, 8), lambda batch: batch[0])

rows = [torch.randn(i % 5 + 1, 4) for i in range(64)]
train("nested", DataLoader(rows, 8, collate_fn=torch.nested.nested_tensor), lambda batch: torch.cat(batch.unbind()))


class Net(nn.Linear):
    def parameters(self):
        return [p for p in super().parameters() if p.requires_grad]

    def modules(self):
        raise ValueError("no")


train("parameters as a list", DataLoader(data, 8), lambda batch: batch[0], Net(4, 1))


class Doubled(DataLoader):
    def _get_iterator(self):
        return (x * 2 for (x,) in super(Doubled, self)._get_iterator())


train("an iterator of its own", Doubled(data, 8))


class Late(DataLoader):
    def _get_iterator(self):
        for (x,) in super()._get_iterator():
            yield x * 2


train("an iterator made late", Late(data, 8))


class Stream(IterableDataset):
    def __len__(self):
        raise ValueError("a stream has none")

    def __iter__(self):
        return iter(torch.randn(64, 4))


train("a length that raises", DataLoader(Stream(), 8))


class Batch:
    def __init__(self, rows):
        self.x = torch.stack([x for (x,) in rows])

    def shape(self):
        return self.x.shape


train("a shape that is a method", DataLoader(data, 8, collate_fn=Batch), lambda batch: batch.x)


class Same(DataLoader):
    __hash__ = None

    def __eq__(self, other):
        raise ValueError("never compare")


train("a loader without a hash", Same(data, 8), lambda batch: batch[0])


class Slots:
    __slots__ = ("x",)

    def __init__(self, rows):
        self.x = torch.stack([x for (x,) in rows])


train("batches with slots", DataLoader(data, 8, collate_fn=Slots), lambda batch: batch.x)


for function in (torch.save, torch.load, nn.utils.clip_grad_norm_, torch.autograd.backward):
    assert pickle.loads(pickle.dumps(function)) is function
"""
)
LOOPS = (
    "plain",
    "nested",
    "parameters as a list",
    "an iterator of its own",
    "an iterator made late",
    "a length that raises",
    "a shape that is a method",
    "a loader without a hash",
    "batches with slots",
)


@pytest.mark.parametrize("options", [(), ("--whole",)], ids=["short", "whole"])
def test_they_train_as_they_would_alone(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "own.py").write_text(SCRIPT)
    done = doctor(tmp_path, "own.py", options=options)
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} 16" for name in LOOPS]
    assert done.report["steps"] >= 16
    assert done.seconds("data_wait") > 0
