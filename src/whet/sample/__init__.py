"""Sample data that ships with whet: English sentence pairs, paraphrase or not.

The folder ``pairs`` holds ``train.csv``, ``validation.csv`` and ``test.csv`` with the columns ``sentence1``,
``sentence2`` and ``label``; the label is ``paraphrase`` or ``different``. Every sentence was written for this
project, none comes from another data set, and the data is under the Apache License 2.0 like the rest of whet.

Counting shared words says little about the label: many paraphrases share few words, and many of the other
pairs share nearly all of them but differ in a number, a negation, an order of events or who did what to whom.
"""
