"""What is drawn: the numbers behind a figure, its kinds, and how it is saved."""
