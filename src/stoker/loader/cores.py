"""Threads that are the parallelism themselves, and how many of them the machine has cores for."""

import os
import threading

import torch

_setting = threading.Lock()


def count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_one_core() -> None:
    """Keep torch's own thread pool out of the calling thread: the loader's threads are the parallelism here."""
    with _setting:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        # The number for threads that torch has not met yet is process-wide: a throw-away thread puts it back.
        restore = threading.Thread(target=torch.set_num_threads, args=(before,))
        restore.start()
        restore.join()
