"""What browsers reach: the door before every server of ours, and the servers. Nothing here analyses or decides."""
