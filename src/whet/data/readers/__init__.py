"""Reads a source (file, folder, hub name, Python object) into a raw table: columns as they stand in the source.

`source.find_source` recognises what was given; `source.read_source` calls the reader for it.
"""
