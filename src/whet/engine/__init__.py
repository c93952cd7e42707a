"""The engine: model, batches in; records out. Knows nothing of run folders, terminals or pages."""
