"""Run by the cache tests as a process of its own: asks for a folder whose building leaves a mark and takes a while."""

import sys
import time
from pathlib import Path

from r3bench.training.models.cache import cached_folder


def build(folder: Path) -> None:
    """One line in the journal a call, then a file in two slow halves."""
    with open(sys.argv[1], "a") as journal:
        journal.write(f"{folder.name}\n")
    (folder / "first").write_text("whole")
    time.sleep(float(sys.argv[2]))
    (folder / "second").write_text("whole")


print(cached_folder("thing", build, "building a thing"))
