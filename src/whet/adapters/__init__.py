"""whet inside other frameworks.

`sklearn.TextClassifier` is whet as a scikit-learn estimator, `ray.Predictor` what Ray Data's `map_batches` takes, and
`spark.predict_udf` makes what Spark's `mapInPandas` takes.
"""
