"""From any source of labelled text to examples on disk, an audit, tokens and batches.

`examples.load_examples` is the entry point; the folders follow the data: `readers/` turns a source into a raw table,
`columns` and `labels` decide what its columns mean, `splits` and `split_writer` make the splits, `audit/` says what is
wrong with them, `tokens/` holds token tables and batches, and `cache` keeps what is computed once.
Imports the base modules and `utils`.
"""
