"""Helpers for the machine and for text: files, threads, signals, devices, memory. None of them deals with training.

Imports `errors` only.
"""
