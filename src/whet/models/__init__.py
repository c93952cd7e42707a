"""Finds, checks, loads and saves pretrained models.

`pretrained.load_model` is the entry point; `safety` refuses what a model folder must not contain.
Imports the base modules and `utils`.
"""
