"""The one HTML page about a study."""
