"""From any labelled text to examples, tokens and batches, in the order in which the modules are used.

Sources:
    sources.py          what a source is, and which reader takes it
    open_files.py       compression, encoding, size limits
    dialect.py          how a delimited file is written: delimiter, quoting, header
    delimited.py        CSV and TSV, strictly
    json_files.py       JSON and JSON lines
    arrow_files.py      Parquet and Arrow
    excel.py            Excel sheets
    folders.py          split files, and one sub-folder a label
    python_objects.py   DataFrames, data sets, lists
    given_texts.py      what predict was given
    hub.py              data sets by name
    raw.py              what every reader returns: columns as they stand in the source

Examples:
    column_names.py     names that people give to columns and splits
    columns.py          which column is text, pair and label
    label_values.py     labels as they stand in the source
    labels.py           which task, which labels, in which order, and the labels as numbers
    text_keys.py        when two texts are the same
    splits.py           train, validation and test where the source has none
    split_writer.py     a split on its way to disk
    examples.py         load_examples: all of the above, cached by content

Audit:
    audit.py            what is wrong with the examples, before time is spent on them
    audit_columns.py    a split as the audit sees it
    same_texts.py       which rows have the same text
    giveaways.py        what settles a label besides the text
    near_duplicates.py  texts that are almost the same

Tokens and batches:
    tokens.py           tokens of a split, once, in flat arrays on disk
    words.py            each distinct word encoded once
    encoders.py         special tokens, token types, truncation
    mapped.py           arrays in files
    rows.py             tokens that somebody else made
    batches.py          order and layout of the rows of a step

Besides:
    cache.py            things that are computed once and kept
    export_csv.py       CSV that a spreadsheet opens without running it
"""
