"""Run pip, and show in one line how far the compiler is; its whole output only if it fails.

python .ci/install.py PIP_ARGUMENTS…
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import deque

STEP = re.compile(r"\s*\[(\d+)/(\d+)\] \S")  # ninja's, with the command or its description
SHOWN_LINES = 60  # of what pip said, when it fails
PARTS = 10  # lines of progress where lines cannot be overwritten, such as in a log


def main(arguments: list[str]) -> int:
    last: deque[str] = deque(maxlen=SHOWN_LINES)
    overwrites, shown = sys.stdout.isatty(), 0
    command = [sys.executable, "-m", "pip", "--verbose", "--disable-pip-version-check", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for line in pip.stdout or ():
            last.append(line)
            if step := STEP.match(line):
                done, of = int(step[1]), int(step[2])
                if overwrites:
                    print(f"\r  compiling: {done} of {of} files", end="", flush=True)
                elif PARTS * done // of > shown:
                    shown = PARTS * done // of
                    print(f"  compiling: {100 * done // of} %", flush=True)
    if overwrites:
        print("\r\033[K", end="")
    if pip.returncode:
        print("".join(last), end="", file=sys.stderr)
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
