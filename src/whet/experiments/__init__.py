"""Questions that take many runs: which settings are better (`tune`)."""
