"""Judges learning curves: `judge.verdict_of` computes the `features` of a curve and applies the `rules` in order."""
