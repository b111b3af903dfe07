"""A component's decisions in a process of its own: `python -m r3bench.contract NAME SETTINGS`."""

import json
import random
import sys

import numpy as np

from r3bench import project
from r3bench.contract.rules import decisions_of
from r3bench.errors import R3BenchError

if __name__ == "__main__":
    project.enter(None)
    random.seed(4321)  # other states than in the process that asks
    np.random.seed(4321)
    try:
        print(json.dumps(decisions_of(sys.argv[1], json.loads(sys.argv[2]))))
    except R3BenchError as error:
        sys.exit(str(error))
