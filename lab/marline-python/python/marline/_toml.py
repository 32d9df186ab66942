"""Writer of TOML with plain tables, because the standard library can only read TOML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dumps(document: Mapping[str, Any]) -> str:
    """A document with tables and arrays of tables only at the top level; ``None`` is omitted."""
    plain: list[str] = []
    tables: list[str] = []
    for key, value in document.items():
        if isinstance(value, Mapping):
            tables += [f"\n[{_key(key)}]", *_lines(value)]
        elif isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
            for item in value:
                tables += [f"\n[[{_key(key)}]]", *_lines(item)]
        elif value is not None:
            plain.append(f"{_key(key)} = {_value(value)}")
    return "\n".join(plain + tables) + "\n"


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in table.items() if value is not None]


def _key(key: str) -> str:
    bare = key.replace("_", "").replace("-", "")
    return key if bare.isascii() and bare.isalnum() else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        # Basic strings of TOML have JSON's escapes, but DEL must also be escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
        return "{ " + inner + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be written as TOML")
