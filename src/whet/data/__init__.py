"""From any labelled text to examples, tokens and batches.

sources.py         what a source is, and which reader takes it
  open_files.py      compression, encoding, size limits
  dialect.py         how a delimited file is written: delimiter, quoting, header
  delimited.py       CSV and TSV, strictly
  json_files.py      JSON and JSON lines
  arrow_files.py     Parquet and Arrow
  excel.py           Excel sheets
  folders.py         split files, and one sub-folder a label
  python_objects.py  DataFrames, data sets, lists
  hub.py             data sets by name
raw.py             what every reader returns: columns as they stand in the source
columns.py         which column is text, pair and label
labels.py          which task, which labels, in which order
splits.py          train, validation and test where the source has none
examples.py        load_examples: all of the above, cached by content
audit.py           what is wrong with the examples, before time is spent on them
near_duplicates.py texts that are almost the same
export_csv.py      CSV that a spreadsheet opens without running it
"""
