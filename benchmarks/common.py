"""What every benchmark shares: where things are, claims with their figures, results that a later run goes on from.

Nothing here measures anything; generators of captures and lakes are in `performance/generate_*.py`.
"""
