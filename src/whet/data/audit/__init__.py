"""Finds what is wrong with the examples before time is spent on them.

`audit.audit` runs every check; each other module is one kind of check.
"""
