"""Tables, and what an analysis of a file or study prints."""
