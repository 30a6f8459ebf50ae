"""One kernel: its document, its view, its page and its instructions."""
