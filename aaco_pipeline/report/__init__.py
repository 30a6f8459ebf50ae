"""Documents of the lake's tables, and their views: terminal, Markdown, HTML, plots."""
