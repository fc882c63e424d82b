# SPDX-License-Identifier: Apache-2.0
"""Files with the options of a job, which cistern-gpt and ``cistern plan`` read, too.

cistern-job.json(5) describes them; ``SCHEMA`` is their JSON Schema.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

_Names = TypeVar("_Names", bound=IntEnum)

SCHEMA: dict[str, Any] = json.loads(
    Path(__file__).with_name("cistern-job.schema.json").read_text(encoding="utf-8")
)

_TYPES = {
    "object": ((dict,), "an object"),
    "integer": ((int,), "an integer"),
    "number": ((int, float), "a number"),
    "string": ((str,), "a text"),
    "boolean": ((bool,), "true or false"),
    "array": ((list,), "a list"),
}


class JobFile:
    """The options in a file. Keys are unique among all sections, so that they need no section.

    Each method returns None for a key that the file does not have. Raises ValueError for a file
    that does not have the form of ``SCHEMA``, and OSError if it cannot be read. The path None
    stands for a file without options.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = "" if path is None else os.fspath(path)
        self._values = {} if path is None else _read(self._path)

    def text(self, key: str) -> str | None:
        value = self._values.get(key)
        return None if value is None else str(value)

    def integer(self, key: str) -> int | None:
        value = self._values.get(key)
        return None if value is None else int(value)

    def number(self, key: str) -> float | None:
        value = self._values.get(key)
        return None if value is None else float(value)

    def section(self, name: str) -> dict[str, Any]:
        """Return the keys of a section, with their values, that the file has."""
        known = SCHEMA["properties"][name]["properties"]
        return {key: value for key, value in self._values.items() if key in known}

    def boolean(self, key: str) -> bool | None:
        value = self._values.get(key)
        return None if value is None else bool(value)

    def member(self, key: str, names: type[_Names]) -> _Names | None:
        """Return the member of an enumeration that has the value as its name."""
        value = self._values.get(key)
        return None if value is None else names[str(value).upper()]

    def refuse(self, allowed: Mapping[str, Any], user: str) -> None:
        """Raise ValueError if the file has one of these keys with another value than here."""
        for key, value in allowed.items():
            if self._values.get(key, value) != value:
                raise ValueError(
                    f"cistern: {self._path}: {user} has no option like '{key}':"
                    f" leave it out, or set it to {json.dumps(value)}"
                )


def _read(path: str) -> dict[str, Any]:
    """Return the values of all sections by their keys."""
    with open(path, "rb") as file:
        text = file.read()
    try:
        sections = json.loads(text, object_pairs_hook=_without_repetitions)
    except ValueError as error:  # Also JSONDecodeError and UnicodeDecodeError.
        raise ValueError(f"cistern: {path}: {error}") from None
    _check(f"cistern: {path}", SCHEMA, sections)
    values: dict[str, Any] = {}
    for section, keys in sections.items():
        _check_section(path, section, keys)
        values.update(keys)
    return values


def _without_repetitions(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"the key '{twice}' is there twice")
    return keys


def _check_section(path: str, section: str, keys: Any) -> None:
    sections = SCHEMA["properties"]
    if section not in sections:
        raise ValueError(
            f"cistern: {path}: there is no section '{section}'{_hint(section, sections)}"
        )
    _check(f"cistern: {path}: section {section}", sections[section], keys)
    known = sections[section]["properties"]
    for key, value in keys.items():
        place = f"cistern: {path}: {section}.{key}"
        if key not in known:
            others = [name for name, other in sections.items() if key in other["properties"]]
            hint = f": it belongs to section {others[0]}" if others else _hint(key, known)
            raise ValueError(f"{place}: there is no such key{hint}")
        _check(place, known[key], value)


def _check(place: str, schema: Mapping[str, Any], value: Any) -> None:
    wrong = _what_is_wrong(schema, value)
    if wrong:
        raise ValueError(f"{place} is {json.dumps(value)}, and must be {wrong}")


def _hint(name: str, known: Mapping[str, Any]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f": did you mean '{nearest[0]}'?" if nearest else ""


def _examples(pattern: str) -> str:
    """Return examples of texts that match ``pattern``, which is a pattern of ``SCHEMA``."""
    known = ("6G", "1.5GiB", "25%", "auto", "1234")
    return " or ".join(json.dumps(text) for text in known if re.search(pattern, text))


def _what_is_wrong_in(schema: Mapping[str, Any], values: list[Any]) -> str:
    """Return what a list must be by its schema; "": it is that."""
    least, most = schema["minItems"], schema["maxItems"]
    if not least <= len(values) <= most:
        return f"a list of {least} to {most} items"
    wrong = next(filter(None, (_what_is_wrong(schema["items"], value) for value in values)), "")
    return f"a list, each item of it {wrong}" if wrong else ""


def _what_is_wrong(schema: Mapping[str, Any], value: Any) -> str:
    """Return what the value must be by its schema; "": it is that."""
    if "anyOf" in schema:
        wrong = [_what_is_wrong(way, value) for way in schema["anyOf"]]
        return "" if "" in wrong else " or ".join(wrong)
    if "enum" in schema:
        names = ", ".join(json.dumps(name) for name in schema["enum"])
        return "" if value in schema["enum"] else f"one of {names}"
    types, words = _TYPES[schema["type"]]
    is_right = isinstance(value, types) and isinstance(value, bool) == (bool in types)
    if isinstance(value, list):
        return _what_is_wrong_in(schema, value) if is_right else words
    if "pattern" in schema:
        is_right = is_right and re.search(schema["pattern"], value) is not None
        return "" if is_right else f"a text such as {_examples(schema['pattern'])}"
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None:
        words += f" from {least}" + (f" to {most}" if most is not None else "")
        is_right = is_right and least <= value and (most is None or value <= most)
    return "" if is_right else words
