"""`r3bench train` on two CPU ranks, split by DDP or FSDP2. Run under torchrun; not a test module itself."""

import os
import sys

from fsdp_ranks import shard

from r3bench.cli import main
from r3bench.training import run

strategy, recipe, runs = sys.argv[1:]
if strategy == "fsdp2":
    plain = run.training_arguments

    def sharded(*arguments):
        found = plain(*arguments)
        shard(found)
        os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16" if found.bf16 else "no"
        return found

    run.training_arguments = sharded
sys.argv = ["r3bench", "train", recipe, "--runs", runs, "--quiet"]
sys.exit(main())
