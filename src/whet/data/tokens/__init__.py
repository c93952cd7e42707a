"""Token tables of a split, made once and memory-mapped, and the batches of a step.

`table.tokenize` makes a table; `batches.BatchOrder` determines the rows of a step.
"""
