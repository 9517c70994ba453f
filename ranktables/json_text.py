"""Decode JSON as people and tools write it: with comments, with a byte order mark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from ranktables.findings import HCCL_A2, Finding, Level, RankTableError

Object: TypeAlias = Mapping[str, Any]

_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)


def load(content: str | bytes, findings: list[Finding]) -> Object:
    """The object that `content` holds; what a strict parser would refuse becomes a finding.

    Raises:
        RankTableError: it holds no JSON object.
    """
    return _loaded(_decoded(content, findings), findings)


def _decoded(content: str | bytes, findings: list[Finding]) -> str:
    encoding = "utf-8"
    if isinstance(content, bytes):
        encoding = json.detect_encoding(content)
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError as error:
            raise RankTableError(
                f"byte {error.start} is not {encoding}", "it must be UTF-8"
            ) from None
    else:
        text = content
    if text.startswith("\ufeff"):
        encoding, text = "utf-8-sig", text[1:]
    if encoding != "utf-8":
        bom = encoding == "utf-8-sig"
        findings.append(
            Finding(
                "json.bom" if bom else "json.encoding",
                "line 1, column 1",
                "a byte order mark" if bom else f"the file is in {encoding}",
                "UTF-8 without a byte order mark",
                "RFC 8259, section 8.1",
                Level.WARNING if bom else Level.ERROR,
            )
        )
    return text


def _loaded(text: str, findings: list[Finding]) -> Object:
    try:
        raw = json.loads(text)
    except RecursionError:
        raise RankTableError("it is nested too deeply", "that is no rank table") from None
    except json.JSONDecodeError as error:
        bare, place = _without_comments(text)
        if not place:
            raise _not_json(error) from None
        try:
            raw = json.loads(bare)
        except json.JSONDecodeError as again:
            raise _not_json(again) from None
        findings.append(
            Finding(
                "json.comments",
                place,
                "a comment",
                "no comments: the samples in HCCL's documentation have them, its parser refuses "
                "them",
                HCCL_A2,
                Level.ERROR,
            )
        )
    if not isinstance(raw, dict):
        raise RankTableError(f"it holds a {type(raw).__name__}", "a rank table is a JSON object")
    return raw


def _not_json(error: json.JSONDecodeError) -> RankTableError:
    return RankTableError(
        f"line {error.lineno}, column {error.colno}: {error.msg}", "it is not JSON"
    )


def _without_comments(text: str) -> tuple[str, str]:
    """The text with comments blanked, lines kept, and the place of the first one."""
    first = -1

    def blank(match: re.Match[str]) -> str:
        nonlocal first
        token = match.group()
        if token.startswith('"'):
            return token
        first = match.start() if first < 0 else first
        return "\n" * token.count("\n")

    bare = _STRING_OR_COMMENT.sub(blank, text)
    if first < 0:
        return bare, ""
    line = text.count("\n", 0, first) + 1
    return bare, f"line {line}, column {first - text.rfind(chr(10), 0, first)}"
