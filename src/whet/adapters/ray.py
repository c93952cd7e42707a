"""whet inside Ray Data: `whet.ray.Predictor` labels a data set of any size on the workers of a cluster.

rows = ray.data.read_parquet("reviews/")
labelled = rows.map_batches(
    whet.ray.Predictor, fn_constructor_args=["/models/reviews-001"], batch_format="pyarrow", compute=workers
)
labelled.write_parquet("labelled/")
"""

from __future__ import annotations

from whet.adapters.batches import BatchLabeller


class Predictor(BatchLabeller):
    """What `map_batches` takes: each worker loads the model once, and Ray starts again a worker that died.

    The settings go in `fn_constructor_kwargs`: `text` and `pair` name the columns where they are not those of the
    training data; `raw`, `device`, `precision` and `trust_remote_code` are as in `whet.load`.
    """
