"""`whet serve`: a model behind HTTP. `server.serve` starts it; requests pass through `app`, `requests` and
`batching`."""
