"""Sample data that ships with whet: English sentence pairs, paraphrase or not.

The folder ``pairs`` holds ``train.csv``, ``validation.csv`` and ``test.csv`` with the columns ``sentence1``,
``sentence2`` and ``label``; the label is ``paraphrase`` or ``different``. Every sentence was written for this
project, none comes from another data set, and the data is under the Apache License 2.0 like the rest of whet.

Counting shared words says little about the label: about half of the paraphrases share few words, and a part of
the other pairs share nearly all of them but differ in a number, a negation, an order of events or who did what
to whom. The remaining pairs share a subject, and often the shape of the sentence, but tell of something else.
"""
