"""Everything that browsers reach: the door before each of our servers, and the servers themselves."""
