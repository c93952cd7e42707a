"""Label texts with an exported model. Needs onnxruntime, tokenizers and numpy, and nothing else.

python predict.py "A fine film."                 # pairs: python predict.py "A text." "Another one."
from predict import Model; Model(folder).predict(["A fine film."])
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


class Model:
    """A folder written by `whet export`."""

    def __init__(self, folder=Path(__file__).parent, check=True):
        self.about = json.loads((Path(folder) / "model.json").read_text(encoding="utf-8"))
        for name, proven in self.about["sums"].items() if check else ():
            if hashlib.sha256((Path(folder) / name).read_bytes()).hexdigest() != proven:
                raise SystemExit(f"{name} is not the file that was proven: export the model again.")
        self.tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.about["max_length"], direction=self.about["truncation_side"])
        self.session = onnxruntime.InferenceSession(Path(folder) / "model.onnx", providers=["CPUExecutionProvider"])
        self.inputs = {given.name for given in self.session.get_inputs()}

    def logits(self, rows, batch=32):
        """Return [rows, outputs] of texts, or of (text, text); rows of similar length are batched together."""
        tokens = self.tokenizer.encode_batch([tuple(row) if isinstance(row, list) else row for row in rows])
        found = np.zeros((len(rows), self.about["outputs"]), np.float32)
        order = np.argsort([len(row.ids) for row in tokens], kind="stable")
        for start in range(0, len(order), batch):
            some = order[start : start + batch]
            longest = max(2, *(len(tokens[index].ids) for index in some))
            names = {"input_ids": self.about["pad"], "attention_mask": 0, "token_type_ids": 0}
            arrays = {name: np.full((len(some), longest), fill, np.int64) for name, fill in names.items()}
            for place, index in enumerate(some):
                ids = tokens[index].ids or [self.about["nothing"]]
                arrays["input_ids"][place, : len(ids)], arrays["attention_mask"][place, : len(ids)] = ids, 1
                arrays["token_type_ids"][place, : len(tokens[index].type_ids)] = tokens[index].type_ids
            given = {name: array for name, array in arrays.items() if name in self.inputs}
            found[some] = self.session.run(["logits"], given)[0]
        return found

    def predict(self, rows):
        """Return a dictionary per row: label, probabilities, and the decisions of `whet decide`."""
        return [self._prediction(row) for row in self.logits(rows).astype(np.float64)]

    def _prediction(self, logits):
        about, labels = self.about, self.about["labels"]
        if about["task"] == "regression":
            low_high = [logits[0] - about["limit"], logits[0] + about["limit"]] if about["limit"] is not None else None
            return {"label": logits[0], **({"candidates": low_high} if low_high else {})}
        logits = logits / about["temperature"]
        if about["task"] == "multilabel":
            chances = np.exp(np.minimum(logits, 0)) / (1 + np.exp(-np.abs(logits)))
            sure = np.maximum(chances, 1 - chances).min()
            label = [name for name, p in zip(labels, chances) if p >= about["thresholds"].get(name, 0.5)]  # noqa: B905
        else:
            powers = np.exp(logits - logits.max())
            chances = powers / powers.sum()
            sure, label = chances.max(), labels[int(chances.argmax())]
            for name, threshold in about["thresholds"].items():
                others = np.where(np.array(labels) == name, -1.0, chances)
                label = name if chances[labels.index(name)] >= threshold else labels[int(others.argmax())]
        answer = {"label": label, "probabilities": dict(zip(labels, chances.tolist()))}  # noqa: B905
        if about["confidence"] is not None:
            answer["abstain"] = bool(sure < about["confidence"])
        if about["limit"] is not None:
            order = np.argsort(-chances, kind="stable")
            answer["candidates"] = [labels[k] for k in order if 1 - chances[k] <= about["limit"]]
        return answer


if __name__ == "__main__":
    given = sys.argv[1:]
    print(json.dumps(Model().predict([given if len(given) > 1 else given[0]])[0], ensure_ascii=False))
