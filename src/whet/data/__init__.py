"""From any source of labelled text to examples on disk, an audit, tokens and batches.

`examples.load_examples` is the entry point. `readers/` turns a source into a raw table, `columns` and `labels` decide
what its columns mean, `splits` and `split_writer` make the splits, `audit/` reports problems, `tokens/` holds token
tables and batches, and `cache` keeps results.
Imports the base modules and `utils`.
"""
