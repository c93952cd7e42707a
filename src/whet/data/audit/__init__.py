"""Finds problems in the examples before training.

`audit.audit` runs every check; each other module is one kind of check.
"""
