"""`whet serve`: a model behind HTTP. `server.serve` starts it; requests go through `app`, `requests` and `batching`."""
