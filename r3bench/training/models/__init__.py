"""The policy: built-in models, folders, their cache, optimiser and weights."""
