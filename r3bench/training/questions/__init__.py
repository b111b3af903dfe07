"""The questions that are trained on: where rows come from, and what identifies one."""
