"""A study or a run for others: archive, model card, hub, merged weights."""
