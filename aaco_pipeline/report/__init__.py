"""Documents built from the lake's tables, and their views: terminal, Markdown, HTML, plots."""
