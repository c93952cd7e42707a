"""Helpers for the machine and for text that know nothing of training: files, threads, signals, devices, memory.

Imports `errors` only.
"""
