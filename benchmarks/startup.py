"""How long `stoker --help` and `import stoker` take, beside an interpreter that does nothing.

    python benchmarks/startup.py [--rounds N] [--json F]

Wanted: `stoker --help` in under 0.3 s. The three take turns.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import stoker": [sys.executable, "-c", "import stoker"],
    "stoker --help": [str(Path(sys.executable).parent / "stoker"), "--help"],
}
WANTED_S = {"stoker --help": 0.3}


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds of each command, round by round."""
    took: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds + 1):
        for name, command in COMMANDS.items():
            begin = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            took[name].append(time.perf_counter() - begin)
    return {name: seconds[1:] for name, seconds in took.items()}  # the first round fills the page cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    took = measure(args.rounds)
    print("| command | median s | best | worst | wanted |\n|---|---:|---:|---:|---|")
    for name, seconds in took.items():
        wanted = f"< {WANTED_S[name]} s" if name in WANTED_S else ""
        middle = statistics.median(seconds)
        print(f"| `{name}` | {middle:.3f} | {min(seconds):.3f} | {max(seconds):.3f} | {wanted} |")
    if args.json:
        args.json.write_text(json.dumps(took, indent=2) + "\n")


if __name__ == "__main__":
    main()
