"""Replayed graphs: what was launched while each was captured, and which replay runs which of them."""
