"""Reads a source (file, folder, hub name, Python object) into a raw table with the source's columns.

`source.find_source` recognises the source; `source.read_source` calls the reader for it.
"""
