"""An answer's text into the one spelling that rules compare."""
