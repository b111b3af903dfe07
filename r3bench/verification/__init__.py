"""Does a study, a run or an archive say what its own files bear out? Reads everything, writes nothing.

Hashes find damage, recomputation finds contradictions, grading anew finds verdicts that the responses don't earn. None
of them can show that a response was sampled from the model it is said to be from, or that a run was not picked among
many.
"""
