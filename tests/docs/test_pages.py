"""
The pages are true: what they show runs, and prints what they say it prints.

Blocks of one page share one namespace and one empty folder. A page may start
with a comment ``<!-- setup … -->`` of Python that readers do not need to see. A page
with ``<!-- needs NAME -->`` is left out if that library of an extra is missing.

=======================  ====================================================================
```python                is executed; a ```text block right behind it is what it prints
```python NAME.py        is written to that file instead
```sql NAME.db           is run on that file by a new process with Python's own sqlite3
```console               ``$ python3 NAME.py`` is run, with `` &`` beside the others until it is
                         killed; ``$ onceward …`` is checked against the help
```py                    is a signature, nothing is run
```py NAME, diff NAME    change the package: test_contributing.py does that in a copy
=======================  ====================================================================

Blocks after *Sync* and *Async* print the same, which stands behind the second of them.
"""

import codeop
import contextlib
import doctest
import importlib
import io
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.children import PYTHON, run
from tests.forking import Forked

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "schema" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = ROOT / "docs" / "reference"
README_LINES = 82

ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SETUP = re.compile(r"<!-- setup\n(?P<text>.*?)^-->$", re.MULTILINE | re.DOTALL)
NEEDS = re.compile(r"^<!-- needs (\w+) -->$", re.MULTILINE)
LINK = re.compile(r"(?<!`)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
IMPORT = re.compile(r"from\s+(?P<module>onceward[\w.]*)\s+import\s+(?P<name>\w+)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
ASYNC = "*Async*"
JOB = re.compile(r"kill (?P<hard>-9 )?%1")
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
LANGUAGES = {"python", "py", "sql", "console", "text", "json", "toml", "diff"}

ASK_SQLITE = """
import sqlite3, sys
con = sqlite3.connect(sys.argv[1], isolation_level=None)
statement = ""
for line in sys.stdin:
    statement += line
    if sqlite3.complete_statement(statement):
        for row in con.execute(statement):
            print("|".join("" if value is None else str(value) for value in row))
        statement = ""
con.close()
"""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page, and what stands right behind it as its output."""

    language: str
    file: str
    text: str
    line: int
    output: str | None


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    for index, match in enumerate(found):
        language, _, file = match["info"].partition(" ")
        output = _output(text, found[index:])
        yield Block(language, file, match["text"], text.count("\n", 0, match.start()) + 1, output)


def _output(text: str, found: list[re.Match[str]]) -> str | None:
    """Return the output that stands right behind the first of some blocks, or behind its twin."""
    if len(found) < 2:
        return None
    between = text[found[0].end() : found[1].start()].strip()
    if between == ASYNC:
        return _output(text, found[1:])
    return found[1]["text"] if not between and found[1]["info"] == "text" else None


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_what_a_page_shows_is_true(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    jobs: list[subprocess.Popen[str]],
) -> None:
    """Every block of the page does, in an empty folder, what the page says of it."""
    for each in NEEDS.findall(page.read_text(encoding="utf-8")):
        pytest.importorskip(each, reason="an extra that the test lane lacks")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    setup = SETUP.search(page.read_text(encoding="utf-8"))
    if setup is not None:
        _execute(page, setup["text"], 1, namespace)

    for block in _blocks(page):
        where = f"{_name(page)}:{block.line}"
        got = _do(page, block, namespace, jobs)
        if block.output is not None and got is not None:
            _compare(where, block.output, got)
    assert [] == jobs, "the page ends the processes that it starts"


@pytest.fixture
def jobs() -> Iterator[list[subprocess.Popen[str]]]:
    """Return the processes that a page has started and not ended; a failed page leaves none."""
    started = list[subprocess.Popen[str]]()
    yield started
    for job in started:
        job.kill()
        job.wait()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name != "reference"], ids=_name
)
def test_every_output_stands_behind_what_prints_it(page: Path) -> None:
    """An output that is parted from its block is compared with nothing, and grows old."""
    blocks = list(_blocks(page))
    printed = {block.output for block in blocks if block.language in {"python", "sql"}}

    assert [] == [
        f"line {block.line}"
        for block in blocks
        if block.language == "text" and block.text not in printed
    ]


def test_what_a_sentence_imports_exists() -> None:
    """No block runs an import that stands in the text of a page."""
    found = [
        (_name(page), each["module"], each["name"])
        for page in PAGES
        for each in IMPORT.finditer(FENCE.sub("", page.read_text(encoding="utf-8")))
    ]

    assert found
    assert [] == [each for each in found if not hasattr(importlib.import_module(each[1]), each[2])]


def _do(
    page: Path, block: Block, namespace: dict[str, Any], jobs: list[subprocess.Popen[str]]
) -> str | None:
    match block.language:
        case "python" if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        case "python":
            return _execute(page, block.text, block.line, namespace)
        case "sql" if not block.file.endswith(".sql"):  # that is a file to write
            return _query(block)
        case "console":
            _console(f"{_name(page)}:{block.line}", block.text, jobs)
    return None


def _execute(page: Path, text: str, line: int, namespace: dict[str, Any]) -> str:
    code = compile("\n" * line + text, str(page), "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, namespace)  # noqa: S102 - running the pages is the point
    return printed.getvalue()


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "tutorial").glob("*.md")), ids=_name)
def test_a_tutorial_can_be_typed_at_a_prompt(page: Path) -> None:
    """Blocks can be pasted into Python's prompt, where an empty line ends a statement."""
    refused = [
        f"{_name(page)}:{block.line}: {line}"
        for block in _blocks(page)
        if block.language == "python" and not block.file
        for line in _stumbles(block.text)
    ]

    assert [] == refused


def _stumbles(text: str) -> Iterator[str]:
    statement: list[str] = []
    for line in [*text.splitlines(), ""]:
        statement.append(line)
        try:
            if codeop.compile_command("\n".join(statement)) is not None:
                statement.clear()
        except SyntaxError:
            yield line
            statement.clear()


def _query(block: Block) -> str:
    assert Path(block.file).is_file(), f"line {block.line}: an sql block names a file that is there"
    done = subprocess.run(
        [sys.executable, "-c", ASK_SQLITE, block.file],
        input=block.text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


def _console(where: str, text: str, jobs: list[subprocess.Popen[str]]) -> None:
    for command, output in _commands(text):
        words = shlex.split(command, comments=True)
        if (ended := JOB.fullmatch(command)) is not None:
            _kill(jobs.pop(), signal.SIGKILL if ended["hard"] else signal.SIGTERM)
        elif words[0] == "python3" and words[-1] == "&":
            jobs.append(Forked([sys.executable, *words[1:-1]], text=True))
        elif words[0] == "python3" and words[1].endswith(".py") and "/" not in words[1]:
            _run(where, words[1:], output)


def _kill(job: subprocess.Popen[str], how: signal.Signals) -> None:
    assert job.poll() is None, "a process that is to be killed runs until then"
    job.send_signal(how)
    job.wait(timeout=60)


def _commands(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def _run(where: str, words: list[str], output: str) -> None:
    done = run([*PYTHON, *words], check=False)
    killed = output.endswith("Killed\n")
    expected = -signal.SIGKILL if killed else 0

    assert expected == done.returncode, f"{where}\n{done.stderr}"
    _compare(where, output.removesuffix("Killed\n"), done.stdout + done.stderr)


def _compare(where: str, want: str, got: str) -> None:
    assert doctest.OutputChecker().check_output(want, got, SAME), (
        f"{where}\n--- the page says\n{want}--- it printed\n{got}"
    )


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_on_a_page_exist(page: Path) -> None:
    """Every ``$ onceward …`` names a command that exists, with options that it has."""
    commands = [
        command
        for block in _blocks(page)
        if block.language == "console"
        for command, _ in _commands(block.text)
    ]
    app = pytest.importorskip("onceward.ops.cli.app", reason="the command is an extra")
    known = {*app.NOUNS, *app.COMMANDS}
    found = [
        (_full_name(words, known), words)
        for words in map(shlex.split, commands)
        if words[0] == "onceward"
    ]

    assert [] == [words for name, words in found if not name and not words[1].startswith("-")]
    assert [] == [
        (name, option)
        for name, words in found
        for option in _options(words)
        if option not in app.page(name)
    ]


def _full_name(words: list[str], known: Container[str]) -> str:
    name = ""
    for word in words[1:]:
        longer = f"{name} {word}".strip()
        name = longer if longer in known else name
    return name


def _options(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("--")]


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_blocks_are_of_known_languages(page: Path) -> None:
    """A block that is not checked, by a misspelt language, cannot slip in."""
    assert set() == {block.language for block in _blocks(page)} - LANGUAGES


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every link inside the repository names a file that exists and, behind #, a heading of it."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    dead = [
        target
        for target in (match["target"] for match in LINK.finditer(prose))
        if not _exists(page, target)
    ]

    assert [] == dead


def _exists(page: Path, target: str) -> bool:
    if "://" in target:
        return True
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    if not path.exists():
        return False
    if not anchor:
        return True
    text = path.read_text(encoding="utf-8")
    return anchor in {*ANCHOR.findall(text), *(_slug(m["title"]) for m in HEADING.finditer(text))}


def _slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def test_every_page_can_be_found() -> None:
    """Links lead from the index to every page of the docs."""
    seen: set[Path] = set()
    rest = [ROOT / "docs" / "index.md"]
    while rest:
        page = rest.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        targets = (
            match["target"].partition("#")[0]
            for match in LINK.finditer(page.read_text(encoding="utf-8"))
        )
        rest += [
            (page.parent / target).resolve() for target in targets if target and "://" not in target
        ]

    assert [] == sorted(_name(page) for page in set(PAGES) - seen)


def test_the_front_page_is_short_and_names_both_commands() -> None:
    """A newcomer reads the front page to its end, and finds the two lines that show everything."""
    text = README.read_text(encoding="utf-8")

    assert len(text.splitlines()) <= README_LINES
    assert "python3 -m pip install -e '.[demo]' && onceward demo\n" in text
    assert "python3 -m pip install -e '.[test]' && python3 -m pytest -n auto\n" in text
