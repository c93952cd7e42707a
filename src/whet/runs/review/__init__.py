"""The page on which a person reviews labels that look wrong.

`server` answers requests; `decisions` keeps what was decided.
"""
