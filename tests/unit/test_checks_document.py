"""docs/checks.md says the truth: its codes are ones that our code can find, its tests exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ranktables.rules import RULES

ROOT = Path(__file__).parents[2]
PROBLEMS = {
    "A": "1 2 3 4 5 6 7 9 10 11 13 14 15 18 19 20 21",
    "B": "1 2 3 5 6 7 8 9 10 12 13 14 15 16 18",
    "C": "1 2 3 4 5 6 7 8 10 11 12 14 15 17",
    "D": "2 3 4 5 6 8 9 10 12 13",
    "E": "1 2 3 4 5 7 8",
    "G6-": " ".join(map(str, range(1, 57))),
}
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "checks.md").read_text("utf-8").splitlines()
    if re.match(r"\| \[?[A-G]\d", line)
]
CAUGHT = {row[0]: row for row in ROWS if row[2] != "not checkable"}


def found_codes() -> list[re.Pattern[str]]:
    """The codes that findings are made with; parts of them that vary match anything."""
    patterns = [re.compile(re.escape(f"ranktable-{rule.code}")) for rule in RULES]
    for folder in ("cluster", "serve_apps"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                patterns += [re.compile(text) for text in _codes(node)]
    return patterns


def _codes(node: ast.AST) -> list[str]:
    """The code in a call that makes a finding, or in a tuple `("code", Level.X, …)`."""
    first: list[ast.expr] = []
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Finding", "Finding.of", "_taken"):
        first = node.args[:1]
    elif isinstance(node, ast.Tuple) and len(node.elts) > 1:
        first = node.elts[:1] if ast.unparse(node.elts[1]).startswith("Level.") else []
    texts = []
    for one in first:
        if isinstance(one, ast.Constant):
            texts.append(re.escape(str(one.value)))
        elif isinstance(one, ast.JoinedStr) and "ranktable" not in ast.unparse(one):
            parts = (
                re.escape(str(p.value)) if isinstance(p, ast.Constant) else "[a-z-]+"
                for p in one.values
            )
            texts.append("".join(parts))
    return texts


CODES = found_codes()


def test_every_reported_problem_has_one_row() -> None:
    ids = [re.sub(r"\[(.+)\]\(.+\)", r"\1", row[0]) for row in ROWS]
    assert ids == [f"{family}{n}" for family, ns in PROBLEMS.items() for n in ns.split()]


@pytest.mark.parametrize("row", CAUGHT.values(), ids=lambda row: re.sub(r"\(.*", "", row[0]))
def test_a_check_and_its_test_exist(row: list[str]) -> None:
    codes, tests = (re.findall(r"`([^`]+)`", cell) for cell in row[2:])
    assert codes
    assert tests
    for code in codes:
        assert any(pattern.fullmatch(code) for pattern in CODES), code
    for test in tests:
        file, name = test.split("::")
        source = (ROOT / "tests" / file).read_text("utf-8")
        assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), test


def test_what_is_not_checkable_has_a_reason() -> None:
    assert all(len(row[3]) > 10 for row in ROWS)
