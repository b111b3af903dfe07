"""What authors of components share, on NumPy arrays."""
