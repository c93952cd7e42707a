"""Compares the stock library and whet side by side on this machine: `benchmark.bench`."""
