import math
import subprocess
import sys

import numpy as np
import pytest
import sklearn.metrics as reference
from hypothesis import given
from hypothesis import strategies as st

import whet.metrics as evaluate
from whet.errors import UsageError
from whet.metrics.registry import GENERAL, GLUE


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("mrpc", {"accuracy": 0.75, "f1": 0.8}),
        ("qqp", {"accuracy": 0.75, "f1": 0.8}),
        ("cola", {"matthews_correlation": 1 / math.sqrt(3)}),
        ("ax", {"matthews_correlation": 1 / math.sqrt(3)}),
        *((task, {"accuracy": 0.75}) for task in ("sst2", "mnli", "mnli_matched", "mnli_mismatched")),
        *((task, {"accuracy": 0.75}) for task in ("qnli", "rte", "wnli", "hans")),
    ],
)
def test_glue_by_hand(config, expected):
    found = evaluate.load("glue", config).compute(predictions=[1, 0, 1, 1], references=[1, 0, 0, 1])
    assert found == pytest.approx(expected)


def test_glue_similarity_gives_both_correlations():
    found = evaluate.load("glue", "stsb").compute(predictions=[[0.0], [1.0], [10.0]], references=[0.0, 1.0, 2.0])
    assert found == pytest.approx({"pearson": 0.9078, "spearmanr": 1.0}, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("accuracy", {}, 0.6),
        ("accuracy", {"normalize": False}, 3.0),
        ("accuracy", {"sample_weight": [1, 0, 1, 0, 1]}, 1.0),
        ("precision", {"average": "macro"}, (1.0 + 0.5 + 0.5) / 3),
        ("recall", {"average": "micro"}, 0.6),
        ("f1", {"average": "macro", "labels": [0]}, 2 / 3),
        ("f1", {"average": "weighted"}, 0.6),
    ],
)
def test_options_and_values_of_label_metrics(name, options, expected):
    found = evaluate.load(name).compute(predictions=[0, 1, 1, 2, 2], references=[0, 0, 1, 1, 2], **options)
    assert found == {name: pytest.approx(expected)}


def test_no_average_gives_one_value_a_class():
    found = evaluate.load("f1").compute(predictions=[0, 1, 1], references=[0, 1, 0], average=None)
    assert found["f1"] == pytest.approx([2 / 3, 2 / 3])


def test_classes_that_nobody_predicts_give_zero_without_a_warning():
    assert evaluate.load("precision").compute(predictions=[0, 0], references=[1, 0]) == {"precision": 0.0}
    assert evaluate.load("precision").compute(predictions=[0], references=[1], zero_division=1) == {"precision": 1.0}


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("mse", {}, {"mse": 4 / 3}),
        ("mse", {"squared": False}, {"mse": math.sqrt(4 / 3)}),
        ("mae", {}, {"mae": 2 / 3}),
        ("r_squared", {}, {"r_squared": -1.0}),
        ("pearsonr", {}, {"pearsonr": 0.9608}),
        ("pearsonr", {"return_pvalue": True}, {"pearsonr": 0.9608, "p-value": 0.1789}),
        ("spearmanr", {"return_pvalue": True}, {"spearmanr": 1.0, "spearmanr_pvalue": 0.0}),
    ],
)
def test_number_metrics_and_their_keys(name, options, expected):
    found = evaluate.load(name).compute(predictions=[1, 2, 5], references=[1, 2, 3], **options)
    assert found == pytest.approx(expected, abs=1e-4)


def test_roc_auc_takes_prediction_scores():
    metric = evaluate.load("roc_auc")
    scores, labels = [0.5, 0.2, 0.99, 0.3, 0.1, 0.7], [1, 0, 1, 1, 0, 0]
    expected = {"roc_auc": pytest.approx(7 / 9)}
    assert metric.compute(prediction_scores=scores, references=labels) == expected
    metric.add_batch(prediction_scores=scores[:5], references=labels[:5])
    metric.add(prediction_scores=scores[5], reference=labels[5])
    assert metric.compute() == expected


def test_roc_auc_of_several_classes():
    chances, labels = [[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]], [0, 1, 2, 2]
    found = evaluate.load("roc_auc", "multiclass").compute(
        prediction_scores=chances, references=labels, multi_class="ovr"
    )
    assert found["roc_auc"] == pytest.approx(reference.roc_auc_score(labels, chances, multi_class="ovr"))


def test_roc_auc_of_one_class_is_nan_without_a_warning():
    assert math.isnan(evaluate.load("roc_auc").compute(prediction_scores=[0.1, 0.2], references=[1, 1])["roc_auc"])


def test_average_precision_without_a_positive_row_is_zero_without_a_warning():
    found = evaluate.load("average_precision").compute(prediction_scores=[0.1, 0.2], references=[0, 0])
    assert found == {"average_precision": 0.0}


def test_average_precision_of_several_labels():
    labels, scores = [[1, 0], [0, 1], [1, 1]], [[0.9, 0.2], [0.8, 0.7], [0.3, 0.1]]
    found = evaluate.load("average_precision").compute(prediction_scores=scores, references=labels)
    assert found["average_precision"] == pytest.approx(reference.average_precision_score(labels, scores))


def test_several_labels_a_row():
    labels, said = [[1, 0], [0, 1], [1, 1]], [[1, 0], [0, 1], [0, 1]]
    assert evaluate.load("accuracy").compute(predictions=said, references=labels) == {"accuracy": pytest.approx(2 / 3)}
    found = evaluate.load("f1", "multilabel").compute(predictions=said, references=labels, average="micro")
    assert found["f1"] == pytest.approx(2 * 3 / (3 + 4))
    found = evaluate.load("matthews_correlation", "multilabel").compute(predictions=said, references=labels)
    assert found["matthews_correlation"] == pytest.approx([0.5, 1.0])
    one = evaluate.load("matthews_correlation", "multilabel").compute(
        predictions=said, references=labels, average="macro"
    )
    assert one["matthews_correlation"] == pytest.approx(0.75)


def test_a_label_of_minus_one_among_others_is_a_label():
    found = evaluate.load("glue", "sst2").compute(predictions=[1, 1], references=[-1, 1])
    assert found == {"accuracy": 0.5}


def test_a_ranking_of_one_class_alone_is_not_defined():
    found = evaluate.load("roc_auc").compute(prediction_scores=[0.1, 0.9, 0.4], references=[1, 1, 1])
    assert math.isnan(found["roc_auc"])


def test_label_names_are_labels_too():
    found = evaluate.load("f1").compute(predictions=["a", "b"], references=["a", "a"], pos_label="a")
    assert found["f1"] == pytest.approx(2 / 3)


def test_torch_batches_as_in_a_training_loop():
    torch = pytest.importorskip("torch")
    metric = evaluate.load("glue", "mrpc")
    for start in (0, 2):
        logits = torch.tensor([[0.1, 0.9], [0.8, 0.2]], requires_grad=True)
        labels = torch.tensor([1, 0, 0, 0])[start : start + 2]
        metric.add_batch(predictions=torch.argmax(logits, dim=-1), references=labels)
    assert metric.compute() == {"accuracy": 0.75, "f1": pytest.approx(2 / 3)}


def test_compute_forgets_the_rows_it_has_scored():
    metric = evaluate.load("accuracy")
    metric.add(prediction=1, reference=0)
    assert metric.compute(predictions=[1], references=[1]) == {"accuracy": 0.5}
    assert metric.compute(predictions=[1], references=[1]) == {"accuracy": 1.0}


def test_an_error_keeps_the_rows_so_that_the_call_can_be_mended():
    metric = evaluate.load("f1")
    metric.add_batch(predictions=[0, 1, 2], references=[0, 1, 2])
    with pytest.raises(UsageError, match="average='binary'"):
        metric.compute()
    assert metric.compute(average="macro") == {"f1": 1.0}


rows = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=20)


@given(rows, st.data())
def test_batches_of_any_size_give_the_result_of_all_rows_at_once(pairs, data):
    cut = data.draw(st.integers(0, len(pairs) - 1))
    said, truth = zip(*pairs, strict=True)
    once, batched = evaluate.load("glue", "mrpc"), evaluate.load("glue", "mrpc")
    for row in range(cut):
        batched.add(prediction=said[row], reference=truth[row])
    batched.add_batch(predictions=said[cut:], references=truth[cut:])
    assert batched.compute() == once.compute(predictions=said, references=truth)


def test_combine_joins_results_and_hands_options_to_those_that_have_them():
    metric = evaluate.combine(["accuracy", "f1", "recall"])
    found = metric.compute(predictions=[0, 1, 2], references=[0, 1, 1], average="micro")
    assert found == pytest.approx({"accuracy": 2 / 3, "f1": 2 / 3, "recall": 2 / 3})


def test_combine_prefixes_keys_that_two_metrics_share():
    metric = evaluate.combine([evaluate.load("accuracy"), evaluate.load("glue", "mrpc")])
    metric.add(prediction=1, reference=1)
    metric.add_batch(predictions=[0], references=[1])
    assert metric.compute() == {"accuracy_accuracy": 0.5, "glue_accuracy": 0.5, "f1": pytest.approx(2 / 3)}


def test_combine_takes_names_of_its_own_and_metrics_of_other_libraries():
    class Rows:
        name = "rows"

        def compute(self, *, predictions=None, references=None, **kwargs):
            return {"rows": len(predictions)}

    metric = evaluate.combine({"right": "accuracy", "size": Rows()}, force_prefix=True)
    assert metric.compute(predictions=[1, 0], references=[1, 1]) == {"right_accuracy": 0.5, "size_rows": 2}


def test_load_metric_is_the_old_name():
    assert evaluate.load_metric("glue", "sst2", trust_remote_code=True).compute(predictions=[1], references=[1])


@pytest.mark.parametrize("name", [*GENERAL, "glue"])
def test_every_metric_describes_itself(name):
    metric = evaluate.load(name, "mrpc" if name == "glue" else None)
    assert metric.name == name
    assert metric.description in repr(metric)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evaluate.load("acuracy"), "no metric 'acuracy'. Did you mean 'accuracy'"),
        (lambda: evaluate.load("bleu"), "Known: .*glue"),
        (lambda: evaluate.load("glue", "mprc"), "no configuration 'mprc'. Did you mean 'mrpc'"),
        (lambda: evaluate.load("glue"), "glue needs a configuration. One of: cola"),
        (lambda: evaluate.load("f1", "multilable"), "Did you mean 'multilabel'"),
        (lambda: evaluate.load("f1", confg_name="x"), "no argument 'confg_name'. Did you mean 'config_name'"),
        (lambda: evaluate.load("f1", num_process=2), "num_process=2.*gather_for_metrics"),
        (
            lambda: evaluate.combine(["f1", "recall"]).compute(predictions=[1], references=[1], averge="macro"),
            "'average'",
        ),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(call, message):
    with pytest.raises(UsageError, match=message):
        call()


@pytest.mark.parametrize(
    ("name", "predictions", "references", "message"),
    [
        (
            "accuracy",
            np.zeros((8, 2)),
            [0] * 8,
            r"predictions has shape \(8, 2\): these look like logits; take argmax",
        ),
        ("accuracy", [1, 0], [1], "references has 1 rows, but predictions has 2"),
        ("accuracy", [], [], "references is empty"),
        ("accuracy", [0.3, 0.7], [0, 1], "predictions holds 0.3, but labels are expected"),
        ("accuracy", [0, 1], [[1, 0], [0, 1]], r"references has shape \(2, 2\).*argmax"),
        ("accuracy", ["a"], [1], "names and numbers"),
        ("accuracy", [1], None, "references is missing"),
        ("accuracy", [[1, 0]], [[1, 0, 1]], r"references has shape \(1, 3\), but predictions \(1, 2\)\.$"),
        ("mse", [1.0, math.nan], [1.0, 2.0], "predictions holds nan in row 1"),
        ("roc_auc", [0.2, math.inf], [0, 1], "prediction_scores holds inf in row 1"),
        ("mse", [[1.0, 2.0]], [1.0], r"predictions \(1, 2\)"),
        (
            "roc_auc",
            [[0.4, 0.6], [0.3, 0.7]],
            [0, 1],
            r"prediction_scores has shape \(2, 2\).*scores\[:, 1\]",
        ),
        ("f1", [0, 1, 2], [0, 1, 2], "average='binary'"),
    ],
)
def test_what_cannot_be_scored_is_refused_with_its_value(name, predictions, references, message):
    with pytest.raises(UsageError, match=message):
        evaluate.load(name).compute(predictions=predictions, references=references)


def test_unlabelled_test_splits_are_noticed():
    with pytest.raises(UsageError, match="all -1"):
        evaluate.load("glue", "rte").compute(predictions=[0, 1], references=[-1, -1])


def test_batches_of_different_widths_are_refused():
    metric = evaluate.load("accuracy")
    metric.add_batch(predictions=[[1, 0]], references=[[1, 0]])
    metric.add_batch(predictions=[[1, 0, 1]], references=[[1, 0, 1]])
    with pytest.raises(UsageError, match="batches of different shapes"):
        metric.compute()


@pytest.mark.parametrize("method", ["compute", "add_batch", "add"])
def test_unknown_arguments_are_refused(method):
    with pytest.raises(UsageError, match="accuracy takes no argument 'prediction_scores'"):
        getattr(evaluate.load("accuracy"), method)(prediction_scores=[1])


def test_nothing_to_compute_says_what_to_pass():
    with pytest.raises(UsageError, match=r"nothing to compute. Pass predictions="):
        evaluate.load("accuracy").compute()


def test_importing_and_scoring_a_task_loads_no_heavy_library():
    code = (
        "import sys, whet.metrics as m; m.score('binary', [[0., 1.], [1., 0.]], [1, 0]);"
        "m.load('glue', 'mrpc').compute(predictions=[1], references=[1]);"
        "print(sorted({'sklearn', 'scipy', 'torch', 'pandas', 'datasets'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_glue_covers_the_benchmark():
    assert {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax"} <= set(GLUE)
