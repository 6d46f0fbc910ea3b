"""The FLOP rules as a table in Markdown, as docs/costs-flops.md has it; a test compares the two.

python -c "from bench.flop_rules_table import write_into; write_into('docs/costs-flops.md')"
"""

from __future__ import annotations

from pathlib import Path

from graphwright.analyze.flops import built_in_rules
from graphwright.files import replaced_file

BEGIN, END = "<!-- rules: begin -->\n", "<!-- rules: end -->\n"


def rules_as_markdown() -> str:
    """One table for each family of op types, in the order of the registry.

    >>> "| `Softmax` `LogSoftmax` | 5 per element" in rules_as_markdown()
    True
    """
    families: dict[str, dict[str, list[str]]] = {}
    for op_type, rule in built_in_rules().items():
        families.setdefault(rule.family, {}).setdefault(rule.formula, []).append(op_type)
    silent = families.pop("no arithmetic")
    parts: list[str] = []
    for family, formulas in {**families, "no arithmetic": silent}.items():
        rows = [f"| {' '.join(f'`{t}`' for t in types)} | {formula} |" for formula, types in formulas.items()]
        parts.append("\n".join([f"### {family[0].upper()}{family[1:]}", "", "| op types | FLOPs |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def write_into(path: str | Path) -> None:
    """Replace what stands between the two marks in a file by the tables of today's rules."""
    text = Path(path).read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    with replaced_file(Path(path)) as stream:
        stream.write(f"{before}{BEGIN}\n{rules_as_markdown()}\n{END}{after}")
