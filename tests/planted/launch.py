"""Run scripts one after another in forked copies of a process that has imported torch already.

A job is one line of JSON on standard input: `script`, `arguments`, the file for its `output`, and as wanted another one
for `errors`, a working directory `cwd` and a folder `tmpdir`. The answer is one line on standard output: `code`,
`leader`, and `pids`, every process that was seen in the script's session.
"""

import atexit
import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any


def session(leader: int) -> set[int]:
    """The processes of this session that live now, zombies left out."""
    found = set()
    for process in Path("/proc").iterdir():  # `glob("*/stat")` fails where one ends meanwhile
        if not process.name.isdecimal():
            continue
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.add(int(process.name))
    return found


def become(job: dict[str, Any]) -> None:
    """Turn this forked process into the script."""
    os.setsid()
    output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    errors = os.open(job["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if "errors" in job else output
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(source, target)
    if "tmpdir" in job:
        os.environ["TMPDIR"] = tempfile.tempdir = job["tmpdir"]
    os.chdir(job.get("cwd", "."))
    sys.argv = [job["script"], *job["arguments"]]
    sys.path[0] = str(Path(job["script"]).parent)
    code = 0
    try:
        runpy.run_path(job["script"], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  as the interpreter would
        traceback.print_exc()
        code = 1
    # The script's own farewells, then out: tearing down all of torch would take a second, each time.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Launcher:
    """Such a process, from the outside."""

    def __init__(self, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, **job: Any) -> dict[str, Any]:
        """Run a job to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """No more jobs."""
        self._process.communicate()


def main() -> None:
    import numpy as np
    import torch.utils.data

    # The first optimizer imports torch's compiler, which takes seconds: once here instead of in every script.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)]).zero_grad()
    del np, torch
    gc.freeze()
    for line in iter(sys.stdin.readline, ""):
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            become(job)
        pids: set[int] = set()
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            pids |= session(child)
            time.sleep(0.1)
        answer = {"code": os.waitstatus_to_exitcode(ended[1]), "leader": child, "pids": sorted(pids | {child})}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
