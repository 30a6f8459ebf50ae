"""A session as one self-contained page, and plots as SVG."""
