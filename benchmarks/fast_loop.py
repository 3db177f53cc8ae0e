"""The plain loops whose overhead is measured."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stoker.observe.doze import AWAKE, DOZE_NS, DOZING, FAST_NS, LONGEST


@dataclass(frozen=True)
class Shape:
    """A model of `depth` hidden layers of `width`, for `batch` samples."""

    name: str
    width: int
    depth: int
    batch: int

    @property
    def modules(self) -> int:
        """Module calls of a step, the model and the loss among them."""
        return 2 * self.depth + 3


SHAPES = (Shape("~1 ms", 128, 2, 64), Shape("~1 ms, 100 modules", 16, 50, 8), Shape("~12 ms", 512, 4, 256))


class Loop:
    """A model, an optimizer, and batches without an end."""

    def __init__(self, shape: Shape) -> None:
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, IterableDataset

        class Endless(IterableDataset):  # type: ignore[type-arg]
            def __iter__(self) -> Iterator[Any]:
                x, y = torch.randn(shape.batch, shape.width), torch.randint(0, 2, (shape.batch,))
                while True:
                    yield x, y

        torch.set_num_threads(1)
        layers = [module for _ in range(shape.depth) for module in (nn.Linear(shape.width, shape.width), nn.ReLU())]
        self.model = nn.Sequential(*layers, nn.Linear(shape.width, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.criterion = nn.CrossEntropyLoss()
        self.batches = iter(DataLoader(Endless(), batch_size=None))

    def train(self, x: Any, y: Any) -> None:
        """A step on one batch."""
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        loss.item()


def cycle(step_ns: float) -> float:
    """Steps in which hooks doze and wake once; 0 if they do not."""
    return AWAKE + min(max(DOZE_NS / step_ns, DOZING), LONGEST) if step_ns < FAST_NS else 0.0
