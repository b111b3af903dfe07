"""Reads results that other tools wrote, as a table with one row per answer. Imports neither torch nor TRL."""
