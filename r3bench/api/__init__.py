"""What `import r3bench` offers to a script or notebook: a grid to run, a study to look at. Stable names."""
