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
    """The class for `map_batches`: each worker loads the model once, and Ray restarts a worker that died.

    Settings are passed in `fn_constructor_kwargs`: `text` and `pair` name the columns if they differ from the
    training data's; `raw`, `device`, `precision` and `trust_remote_code` are as in `whet.load`.
    """
