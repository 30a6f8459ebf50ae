"""Sessions as self-contained pages, and plots as SVG."""
