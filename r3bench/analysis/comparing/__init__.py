"""Two studies, or two moments of one, held against each other."""
