"""Judgements under uncertainty: what a series of measurements allows to be said."""
