"""Where cells run: this machine, SLURM, Ray; processes, signals, ranks."""
