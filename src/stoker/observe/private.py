"""A process's own memory, as the kernel counts it. Read inside the user's processes too: it needs no library."""

from pathlib import Path


def private_bytes(pid: int) -> int | None:
    """Memory that only this process has, and that its end would free."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in text.splitlines() if line.startswith(("Private_", "Pss_Shmem"))]
    return sum(kib) * 1024 if kib else None
