"""whet inside Spark: `whet.spark.predict_udf` labels a DataFrame of any size on the workers of a cluster.

label = whet.spark.predict_udf("/models/reviews-001")
frame.mapInPandas(label, label.schema(frame)).write.parquet("labelled/")
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.errors import ArtifactError

if TYPE_CHECKING:
    from whet.adapters.batches import BatchLabeller


@dataclass(frozen=True)
class PredictUdf:
    """A function for `mapInPandas`. Only these settings are sent to the workers; each loads the model once."""

    run: str
    model: str
    """The checksum of the model when the function was made."""
    settings: tuple[tuple[str, Any], ...]
    texts: tuple[str, ...]
    answers: tuple[tuple[str, Any], ...] = field(compare=False)
    """The prediction columns and their Arrow types."""

    def schema(self, frame: Any) -> Any:
        """Return the schema for `mapInPandas`: the columns of a DataFrame and those of the predictions."""
        from pyspark.sql.pandas.types import from_arrow_type
        from pyspark.sql.types import StructField, StructType

        from whet.adapters.batches import column_of
        from whet.data.answer_columns import free_column_names

        for name in self.texts:
            column_of(name, frame.columns)  # a missing column raises before Spark starts
        types = dict(self.answers)
        names = free_column_names(list(types), frame.columns)
        added = [StructField(names[name], from_arrow_type(kind)) for name, kind in types.items()]
        return StructType([*frame.schema.fields, *added])

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the rows of a partition with the predictions appended."""
        labeller = _loaded_once(self)
        for batch in batches:
            yield labeller(batch)


def predict_udf(
    run: Path | str,
    *,
    text: str | None = None,
    pair: str | None = None,
    raw: bool = False,
    device: str = "auto",
    precision: str = "auto",
    trust_remote_code: bool = False,
) -> PredictUdf:
    """Return the function that labels the rows of a partition, for `mapInPandas`.

    `run` is a folder with the same path on every worker. It is also loaded here, so that mistakes show before Spark
    starts. `text` and `pair` name columns if they differ from the training data's; the other settings are as in
    `whet.load`.
    """
    from whet.adapters.batches import BatchLabeller

    settings: dict[str, Any] = {"text": text, "pair": pair, "raw": raw, "device": device, "precision": precision}
    settings["trust_remote_code"] = trust_remote_code
    place = str(Path(run).resolve())
    found = BatchLabeller(place, **settings)
    return PredictUdf(
        place, found.model.fingerprint(), tuple(settings.items()), found.texts, tuple(found.types.items())
    )


@lru_cache(maxsize=1)
def _loaded_once(wanted: PredictUdf) -> BatchLabeller:
    """A worker computes many partitions, one after the other; it loads the model for the first."""
    from whet.adapters.batches import BatchLabeller

    found = BatchLabeller(wanted.run, **dict(wanted.settings))
    if found.model.fingerprint() != wanted.model:
        raise ArtifactError(
            f"The model in {wanted.run!r} is another one on this worker.", "Give every worker the same folder."
        )
    return found
