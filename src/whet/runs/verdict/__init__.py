"""Judges learning curves: `judge.verdict_of` computes the `features` of a curve and asks the `rules` in order."""
