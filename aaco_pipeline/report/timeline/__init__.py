"""What a page draws of a session's timeline: bounded, and yet with sums of any range that are exact."""
