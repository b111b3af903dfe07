"""Everything a recipe needs, tried before anything is spent."""
