"""Common names of columns, most specific first; compared without case, spaces and dashes."""

from __future__ import annotations

PAIRS: tuple[tuple[str, str], ...] = (
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("texta", "textb"),
    ("sentencea", "sentenceb"),
    ("sent1", "sent2"),
    ("s1", "s2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("query1", "query2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "context"),
    ("question", "answer"),
    ("query", "passage"),
    ("query", "document"),
    ("query", "title"),
    ("claim", "evidence"),
    ("headline", "body"),
    ("text", "pair"),
    ("text", "textpair"),
    ("sentence", "pair"),
    ("#1string", "#2string"),
)
TEXTS: tuple[tuple[str, ...], ...] = (
    ("text", "sentence", "texts", "sentences"),
    (
        "review", "reviewtext", "content", "comment", "commenttext", "message", "tweet", "utterance",
        "document", "body", "passage", "sms", "input", "post", "reviews", "article", "phrase",
    ),
    ("description", "question", "query", "headline", "title", "string", "abstract", "verse", "line"),
)  # fmt: skip
LABELS: tuple[tuple[str, ...], ...] = (
    ("label", "labels"),
    (
        "class", "category", "target", "goldlabel", "gold", "intent", "sentiment", "isduplicate", "polarity",
        "classindex", "classes", "categories", "topic", "emotion", "emotions", "genre", "genres", "tags",
        "topics", "coarselabel", "annotation", "quality", "truth", "outcome", "stance",
    ),
    ("labeltext", "labelname", "y", "output", "answer", "tag", "type"),
    ("rating", "stars", "score", "overall", "similarity", "similarityscore", "relatedness", "relatednessscore"),
)  # fmt: skip
IDS: tuple[str, ...] = (
    "idx", "id", "index", "guid", "uid", "uuid", "rowid", "row", "rownumber", "unnamed:0", "pairid",
    "promptid", "#1id", "#2id", "qid", "qid1", "qid2", "docid", "textid", "sentenceid", "phraseid", "userid",
    "commentid", "reviewid", "tweetid",
)  # fmt: skip
SPLITS: dict[str, str] = {
    "train": "train", "training": "train", "trn": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "development": "validation",
    "test": "test", "testing": "test", "tst": "test",
}  # fmt: skip
KNOWN: frozenset[str] = frozenset(
    [
        *IDS,
        *(name for tier in TEXTS for name in tier),
        *(name for pair in PAIRS for name in pair),
        *(name for tier in LABELS for name in tier),
    ]
)


def plain(name: str) -> str:
    """Return the name in its normalised spelling."""
    return "".join(char for char in name.strip().casefold() if char not in " _-.\t")
