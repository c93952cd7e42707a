"""Finds, checks, loads and saves pretrained models.

`pretrained.load_model` is the entry point; `safety` refuses model folders with unsafe contents.
Imports the base modules, `utils` and `data`.
"""
