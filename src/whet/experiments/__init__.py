"""Experiments with many runs: searching for better settings (`tune`)."""
