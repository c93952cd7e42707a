"""The loop of Accelerate's own course with whet's names. Run by `accelerate launch`: SOURCE MODEL RESULT HOW."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from whet import (
    Accelerator,
    AdamW,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    TrainStep,
    get_scheduler,
    load_dataset,
    load_metric,
)

source, checkpoint, result, how = sys.argv[1:]
torch.manual_seed(0)
accelerator = Accelerator()

tokenizer = AutoTokenizer.from_pretrained(checkpoint)
raw = load_dataset("csv", data_files=source)["train"]
names = sorted(set(raw["label"]))
tokenized = raw.map(
    lambda rows: {**tokenizer(rows["text"]), "labels": [names.index(n) for n in rows["label"]]}, batched=True
)
tokenized = tokenized.remove_columns(["text", "label"])
collator = DataCollatorWithPadding(tokenizer)
train_dataloader = DataLoader(tokenized, batch_size=4, shuffle=True, collate_fn=collator)
eval_dataloader = DataLoader(tokenized, batch_size=4, collate_fn=collator)

model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=2)
optimizer = AdamW(model.parameters(), lr=1e-3)
train_dl, eval_dl, model, optimizer = accelerator.prepare(train_dataloader, eval_dataloader, model, optimizer)

num_epochs = 6
steps = num_epochs * len(train_dl)
lr_scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=steps)

model.train()
if how == "step":
    step = TrainStep(model, optimizer, lr_scheduler)
    for _ in range(num_epochs):
        for batch in train_dl:
            step(batch)
else:
    for _ in range(num_epochs):
        for batch in train_dl:
            outputs = model(**batch)
            loss = outputs.loss
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()

metric = load_metric("accuracy")
model.eval()
for batch in eval_dl:
    with torch.no_grad():
        logits = model(**batch).logits
    predictions, labels = accelerator.gather_for_metrics((logits.argmax(dim=-1), batch["labels"]))
    metric.add_batch(predictions=predictions, references=labels)

total = torch.stack([each.detach().double().abs().sum() for each in model.parameters()]).sum()
sums = accelerator.gather(total[None]).tolist()
if accelerator.is_main_process:
    found = {"processes": accelerator.num_processes, "rows": len(tokenized), "sums": sums, **metric.compute()}
    Path(result).write_text(json.dumps(found))
accelerator.end_training()
