"""Token tables of a split, made once and memory-mapped, and the batches that a step takes from them.

`table.tokenize` makes a table; `batches.BatchOrder` says which rows a step holds.
"""
