"""Serves the live page of runs on this machine.

`server` answers requests; `follow` reads records as they are written.
"""
