"""What is served over HTTP on this machine: the live page of a run. No torch on import."""
