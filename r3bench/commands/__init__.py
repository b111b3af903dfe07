"""The commands of the `r3bench` program, by what they are about. Every one imports what it needs inside itself."""
