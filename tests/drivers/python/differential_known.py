"""Known differences of FerretDB 1.24.2 from MongoDB, with the answers that MongoDB's rules require."""

FILTERS = {
    # `$` matches before a final newline too.
    "regex-end": [0, 2, 7, 19, 23],
    "regex-word": [0, 1, 2, 4, 5, 19, 23],
    # RE2 has neither option x nor look-ahead.
    "regex-extended": [0, 2, 5, 7, 19, 23],
    "regex-look-ahead": [5],
    # `$mod` looks into arrays.
    "mod": [9, 10, 11, 12, 20, 22, 23],
    # `$elemMatch` requires one element that meets all conditions, and accepts conditions on fields.
    "elem-match-operators": [20],
    "elem-match-fields": [29],
    # In an array without documents, no `a` can be null.
    "dotted-null": [*range(19), 27, 30, 31, 32, 100],
    "not-of-nothing": {"code": 2},
    # `$exists: 0` means that the field must be absent.
    "exists-number": [100],
}

UPDATES = {
    # $unset of an element leaves a null, so that the others keep their indexes.
    "unset-array-item": [[("_id", 1), ("a", [1, None, 3])], 1, 1],
    # FerretDB ignores $slice, $position and $sort of $push, and conditions of $pull.
    "push-slice": [[("_id", 1), ("a", [2, 3])], 1, 1],
    "push-position": [[("_id", 1), ("a", [1, 2, 3, 4])], 1, 1],
    "push-sort": [[("_id", 1), ("a", [5, 3, 2, 1])], 1, 1],
    "pull-condition": [[("_id", 1), ("a", [1])], 1, 1],
}

WHOLE = [("_id", 1), ("a", 1), ("b", {"c": 2, "d": 3}), ("e", [{"f": 1, "g": 2}, {"f": 3}, 4])]

# FerretDB has neither $slice nor $elemMatch in projections.
PROJECTIONS = {
    "slice": [[*WHOLE, ("h", [1, 2])]],
    "slice-last": [[*WHOLE, ("h", [4])]],
    "elem-match": [[("_id", 1), ("h", [3])]],
}

# FerretDB does not find `a` in documents within arrays.
SORTS = {"dotted": [100, 32, 31, 30, 27, *range(24, -1, -1), 29, 28, 25, 26]}

# For an unknown stage, FerretDB answers code 40234 instead of MongoDB's 40324.
PIPELINES = {"unknown": {"code": 40324}}


def counted(answer):
    """Returns the expected count of a find that returns `answer`."""
    return len(answer) if isinstance(answer, list) else answer


KNOWN = {
    **{f"filter {name}": answer for name, answer in FILTERS.items()},
    **{f"count {name}": counted(answer) for name, answer in FILTERS.items()},
    **{f"update {name}": answer for name, answer in UPDATES.items()},
    **{f"projection {name}": answer for name, answer in PROJECTIONS.items()},
    **{f"sort {name}": answer for name, answer in SORTS.items()},
    **{f"pipeline {name}": answer for name, answer in PIPELINES.items()},
}
