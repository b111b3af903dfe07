"""From files to results: study folders, and tables from elsewhere."""
