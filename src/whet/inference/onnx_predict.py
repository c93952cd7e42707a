"""Label texts with an exported model: python predict.py "A fine film." (of a pair: "A text." "Another one.")."""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


class Model:
    def __init__(self, folder=Path(__file__).parent):
        self.about = json.loads(Path(folder, "model.json").read_text(encoding="utf-8"))
        for name, proven in self.about["sums"].items():
            if hashlib.sha256(Path(folder, name).read_bytes()).hexdigest() != proven:
                sys.exit(f"{name} is not the file that was proven: export the model again.")
        self.tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
        self.session = onnxruntime.InferenceSession(Path(folder, "model.onnx"), providers=["CPUExecutionProvider"])

    def outputs(self, rows):  # texts, or pairs (text, text); rows of similar length are computed together
        tokens, found = self.tokenizer.encode_batch(rows), [{}] * len(rows)
        order = sorted(range(len(rows)), key=lambda row: len(tokens[row]))
        for some in (order[start : start + 32] for start in range(0, len(rows), 32)):
            for row in some:
                tokens[row].pad(max(2, len(tokens[some[-1]])), pad_id=self.about["pad"])
            given = {to: np.array([getattr(tokens[row], part) for row in some]) for to, part in self.about["inputs"]}
            for row, *values in zip(some, *self.session.run(self.about["outputs"], given)):
                found[row] = {name: value.tolist() for name, value in zip(self.about["outputs"], values)}
        return found

    def predict(self, rows):  # dictionaries: the label, the probabilities, and the decisions of `whet decide`
        labels, answers = self.about["labels"], self.outputs(rows)
        for answer in answers:
            for name in self.about["places"]:  # outputs that are places in the list of labels; -1 is no label
                answer[name] = [labels[place] for place in answer[name] if place >= 0]
            if self.about["task"] != "multilabel":
                answer["label"] = answer["label"][0]
            answer["probabilities"] = dict(zip(labels, answer.get("probabilities", ())))
            del answer["logits"]
        return answers


if __name__ == "__main__":
    texts = sys.argv[1:] or sys.exit(__doc__)
    print(json.dumps(Model().predict([texts if len(texts) > 1 else texts[0]])[0], ensure_ascii=False))
