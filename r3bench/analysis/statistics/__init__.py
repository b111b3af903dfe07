"""Arrays in, arrays out: intervals, effects, tests, power."""
