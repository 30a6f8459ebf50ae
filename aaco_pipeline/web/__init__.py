"""Web servers: access control in front of each server, and the servers themselves."""
