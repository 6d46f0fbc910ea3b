"""Data sets, queues, tables, files, text, and lists of tensors by name: no arithmetic."""

import re

from graphwright.ir.traits.control_flow import called_functions
from graphwright.ops.family import Family, FlopRule

FILLS_TABLE = frozenset({"LookupTableImportV2", "LookupTableImport", "InitializeTableV2", "InitializeTable", "LookupTableInsertV2"})
FILLS_TABLE_FROM_FILE = frozenset({"InitializeTableFromTextFileV2", "InitializeTableFromTextFile"})
FINDS_IN_TABLE = frozenset({"LookupTableFindV2", "LookupTableFind"})
_SILENT = re.compile(
    r"""
    TensorList\w+ | EmptyTensor(List|Map) | TensorMap\w+ | TensorArray\w* | Stack(V2|Push|PushV2|Pop|PopV2|Close|CloseV2)?
    | \w*Dataset\w* | \w*Iterator\w* | \w*Queue\w* | Barrier\w* | (Ordered)?Map(Stage|Unstage|Peek|Size|Clear|IncompleteSize|UnstageNoKey)
    | Stage(Peek|Size|Clear)? | Unstage
    | (Lookup|Hash|Mutable|AnonymousMutable|AnonymousHash|Initialize)\w*Table\w*
    | \w*Reader\w* | ReadFile | WriteFile | MatchingFiles | WholeFile\w* | Sharded(Filename|Filespec) | MergeV2Checkpoints
    | (Save|Restore)(V2|Slices?)? | \w*Summary\w* | (Add|Take)ManySparse\w* | AddSparseToTensorsMap
    | (De)?serialize\w* | Serialize\w* | Deserialize\w* | Parse\w* | (Decode|Encode)\w* | ExtractJpegShape
    | String\w* | (Static)?Regex\w* | Substr | ReduceJoin | UnsortedSegmentJoin | AsString | Unicode\w* | \w*ToHashBucket\w*
    | Ragged(Gather|Range|TensorFromVariant|TensorToVariant|TensorToTensor|TensorToVariantGradient|FillEmptyRows|FillEmptyRowsGrad|Cross)
    | Debug\w* | (Copy)?ToMesh\w* | DeleteSeedGenerator | \w*SeedGenerator | GenerateVocabRemapping | LoadAndRemapMatrix
    """,
    re.VERBOSE,
)
"""Families of op types that only move, keep, read or write: lists and arrays of tensors, data sets, queues, tables, files, text."""


# 0, unless it calls a function: the cost of a data set's function is unknown.
_SILENT_RULE = FlopRule("no arithmetic", "0", lambda node: None if called_functions(node) else 0.0)


def silent_rule(op_type: str) -> FlopRule | None:
    """Return the rule of an op type that computes nothing, by its name: text, files, queues, tables, data sets, lists of tensors."""
    return _SILENT_RULE if _SILENT.fullmatch(op_type) else None


FAMILY = Family(
    rows_in_data={
        "StringSplit": "as many as there are words",
        "Decode": "known when the data is decoded",
        "Parse": "known when the data is parsed",
        "Iterator": "known when the next element comes",
        "ReadFile": "known when the file is read",
        "Ragged": "as long as its rows are",
    }
)
