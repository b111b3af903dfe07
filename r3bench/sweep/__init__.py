"""Grids of runs: designs, plan, dispatch, status and tuning. Nothing here imports torch or TRL at the top level."""
