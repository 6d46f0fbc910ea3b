"""Pages of the site that are made of what stands elsewhere: commands, examples, notebooks, and the files beside README.md.

MkDocs calls the functions whose names begin with `on_`. Everything is read, nothing runs but the package's own command line, which says what
its commands take.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BESIDE = {"SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files that a code host wants at the root, and the pages that they become."""
_UP = re.compile(r"\]\((?:\.\./)+(examples(?:/[\w.]*)?|SECURITY\.md|CHANGELOG\.md|CONTRIBUTING\.md)(#[^)]*)?\)")
_ROOT_LINK = re.compile(r"[]][(](?!https?:|#)(?:docs/)?([\w./-]+)")
_LIST = re.compile(r"(?m)^((?![-*] |\d+\. |\s).+\n)(?=(?:- |\d+\. ))")
_EXAMPLE = re.compile(r"(?m)^( *)>>> .*\n(?:\1\S.*\n?|\1 +\S.*\n?)*")
_FENCED = re.compile(r"(?ms)^( *```.*?^ *```$)")
_OUTPUT_LINES = 60


def on_config(config: Any) -> Any:
    """Name the examples and notebooks in the navigation."""
    made = {path: text.partition("\n")[0].lstrip("# ").replace("`", "") for path, text in pages().items()}
    for entry in config["nav"]:
        if "Examples" in entry:
            entry["Examples"] = [
                "examples/index.md",
                *({title: path} for path, title in made.items() if path.startswith(("examples/", "notebooks/")) and "index" not in path),
            ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that no file in docs/ holds."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(notebook)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files outside of docs/ lead to the pages made of them; a list may follow its sentence at once, as code hosts allow."""
    here = posixpath.dirname(page.file.src_uri)

    def linked(match: re.Match[str]) -> str:
        target = BESIDE.get(match[1], match[1])
        if target.startswith("examples"):
            target = f"{target.removesuffix('.py')}.md" if target.endswith(".py") else "examples/index.md"
        return f"]({posixpath.relpath(target, here or '.')}{match[2] or ''})"

    return fenced(_UP.sub(linked, markdown))


def fenced(text: str) -> str:
    """Examples that stand in prose as `>>>` become blocks of code; a list may follow its sentence at once, as code hosts allow."""
    parts = _FENCED.split(text)
    return "".join(part if k % 2 else _EXAMPLE.sub(_block, _LIST.sub(r"\1\n", part)) for k, part in enumerate(parts))


def _block(match: re.Match[str]) -> str:
    return f"{match[1]}```pycon\n{match[0].rstrip()}\n{match[1]}```\n"


def pages() -> dict[str, str]:
    """By its path in the site, the text of each page that is made."""
    made = {page: _ROOT_LINK.sub(_inside, (ROOT / name).read_text(encoding="utf-8")) for name, page in BESIDE.items()}
    made["commands.md"] = "\n".join(_commands())
    made["flop-rules.md"] = f"# FLOP rules\n\nAs `graphwright flops --rules` prints them.\n\n```text\n{_printed('flops', '--rules')}```\n"
    made["api/editor.md"] = _editor_reference()
    scripts = sorted((ROOT / "examples").glob("*.py"))
    rows = [f"- [{_question(path)}]({path.stem}.md)" for path in scripts]
    notebooks = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    titles = [
        (path, "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]).splitlines()[0].lstrip("# "))
        for path in notebooks
    ]
    if titles:
        rows += ["", "As notebooks, with what they print:", "", *(f"- [{title}](../notebooks/{path.stem}.md)" for path, title in titles)]
    made["examples/index.md"] = "\n".join(["# Examples", "", "Scripts in `examples/`, each the answer to one question.", "", *rows, ""])
    for path in scripts:
        made[f"examples/{path.stem}.md"] = (
            f'# {_question(path)}\n\n```python title="examples/{path.name}"\n{path.read_text(encoding="utf-8")}```\n'
        )
    for path in notebooks:
        made[f"notebooks/{path.stem}.md"] = "\n".join(_notebook(json.loads(path.read_text(encoding="utf-8"))))
    return made


def _editor_reference() -> str:
    """The reference of `graphwright.editor`, from the list of public names."""
    listed = (ROOT / "tests" / "public_api.txt").read_text(encoding="utf-8")
    names = set(re.findall(r"(?m)^graphwright\.editor\.(\w+)", listed)) - {"matcher", "open_doors", "ph", "sgv", "sgv_scope"}
    classes = sorted(name for name in names if name[0].isupper())
    text = [
        "# graphwright.editor\n\nNames of contrib.graph_editor and graph_def_editor; [what differs](../editor.md). `matcher` is `OpMatcher`, `ph` is",
        "`make_placeholder_from_dtype_and_shape`, `sgv` is `make_view`, and `sgv_scope` is `make_view_from_scope`.\n",
    ]
    for title, members in (("Classes", classes), ("Functions", sorted(names - set(classes)))):
        text += [f"## {title}\n", *(f"::: graphwright.editor.{name}\n" for name in members)]
    return "\n".join(text)


def _inside(match: re.Match[str]) -> str:
    return "](" + BESIDE.get(match[1], match[1])


def _question(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or path.stem
    return re.split(r"(?<=[.?:])\s", " ".join(doc.split()), maxsplit=1)[0].rstrip(".:")


def _printed(*arguments: str) -> str:
    from graphwright.commands.cli import app
    from typer.testing import CliRunner

    return CliRunner().invoke(app, list(arguments)).output


def _commands() -> Iterator[str]:
    """Every command with its arguments and options, as the command line itself knows them."""
    from graphwright.commands.cli import app
    from typer.main import get_command

    yield "# Command line\n\n[By example](command-line.md). Exit codes: 0 done; 1 two models differ (`diff`, `verify`); 2 an error that the message explains;"
    yield "3 nothing fits the budget; 4 a check failed; 130 interrupted.\n"
    yield from _group(get_command(app), "graphwright")


def _group(group: Any, name: str) -> Iterator[str]:
    for command in (group.commands[key] for key in group.commands if not group.commands[key].hidden):
        full = f"{name} {command.name}"
        if hasattr(command, "commands"):
            yield from _group(command, full)
            continue
        yield f"## `{full}`\n\n{(command.help or '').split(chr(12))[0].strip()}\n"
        rows = [_row(param) for param in command.params if param.name != "help" and not getattr(param, "hidden", False)]
        if rows:
            yield "| argument or option | what it says |\n|---|---|"
            yield from rows
        yield ""


def _row(param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    if param.param_type_name == "argument":
        names = f"`{(param.metavar or param.name).upper()}`"
    text = " ".join((getattr(param, "help", None) or "").split())
    default = getattr(param, "default", None)
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        text += f" Default: `{default}`."
    return f"| {names} | {text.replace('|', chr(92) + '|').replace('<', '&lt;')} |"


def _notebook(notebook: dict[str, Any]) -> Iterator[str]:
    """A notebook as Markdown: its text, its code, what it printed and drew."""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source + "\n"
        elif cell["cell_type"] == "code" and source.strip():
            yield f"```python\n{source}\n```\n"
            for output in cell.get("outputs", []):
                yield from _output(output)


def _output(output: dict[str, Any]) -> Iterator[str]:
    data = output.get("data", {})
    if "text/html" in data:
        yield f'<div class="notebook-output">\n{"".join(data["text/html"])}\n</div>\n'
    elif "image/svg+xml" in data:
        yield f'<div class="notebook-output">\n{"".join(data["image/svg+xml"])}\n</div>\n'
    elif "image/png" in data:
        yield f'<img alt="what the cell above draws" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">\n'
    else:
        lines = "".join(output.get("text", data.get("text/plain", ""))).rstrip().splitlines()
        if lines:
            cut = [*lines[:_OUTPUT_LINES], "..."] if len(lines) > _OUTPUT_LINES else lines
            yield "```text\n" + "\n".join(cut) + "\n```\n"
