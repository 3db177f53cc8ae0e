"""A training in a container whose /dev/shm is smaller than one batch."""

import ctypes

import light  # type: ignore[import-not-found]  # beside the script
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def container(shm_bytes: int) -> None:
    """A mount namespace of our own, as a container has."""
    libc = ctypes.CDLL(None, use_errno=True)
    apart, private = 0x00020000, 0x4000 | 0x40000
    assert not libc.unshare(apart)
    assert not libc.mount(None, b"/", None, private, None)
    assert not libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={shm_bytes}".encode())


def main() -> None:
    container(1 << 20)
    model = nn.Linear(1 << 16, 2)
    for (x,) in DataLoader(TensorDataset(torch.zeros(64, 1 << 16)), batch_size=16, num_workers=2):
        model(x).sum().backward()


if __name__ == "__main__":
    light.started()
    main()
