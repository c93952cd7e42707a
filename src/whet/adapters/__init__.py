"""whet inside other frameworks: `sklearn.TextClassifier` is whet as a scikit-learn estimator."""
