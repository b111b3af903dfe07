"""What a component promises, tried on made-up batches: what `r3bench check COMPONENT` runs."""
