"""Writes the report of a run and of a comparison: `html.write_report`, `compare_html`, `model_card`."""
