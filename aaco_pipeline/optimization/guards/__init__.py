"""What a candidate is refused for before it is run, each guard by itself: its text, its objects, its resources."""
