"""Reports of records: tables, plots, the HTML page and the paper's tables."""
