"""Running a grid: the dispatcher, and the index that mirrors it."""
