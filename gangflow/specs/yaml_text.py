"""YAML 1.2's core schema over PyYAML: plain data with the line of every path, and text that reads back as the same data."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gangflow.specs.faults import Fault, Loc, fault_error

MAX_NODES = 200_000
"""Anchors make small texts mean huge documents."""
MAX_DEPTH = 60
_PREFIX = "tag:yaml.org,2002:"


class IntScalar(int):
    """A number whose text (`007`, `0x10`) is not how Python writes it."""

    text: str


class FloatScalar(float):
    """A number whose text (`1.10`, `1e3`) is not how Python writes it."""

    text: str


class _Loader(yaml.SafeLoader):
    """Resolves scalars by YAML 1.2's core schema."""


class _Dumper(yaml.SafeDumper):
    """Quotes by the same schema, so that text stays text."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)


def _resolvers() -> None:
    rules = (
        ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
        ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
        ("null", r"~|null|Null|NULL|", "~nN\0"),
        ("merge", r"<<", "<"),
    )
    for kind in (_Loader, _Dumper):
        kind.yaml_implicit_resolvers = {}  # not PyYAML's own, which are YAML 1.1's
        for tag, pattern, first in rules:
            letters = [None if letter == "\0" else letter for letter in first]
            kind.add_implicit_resolver(_PREFIX + tag, re.compile(f"(?:{pattern})\\Z"), [x or "" for x in letters])


_resolvers()


def compose(text: str) -> tuple[Any, Callable[[Loc], int]]:
    """Plain data and the line of each path. Every fault of the text is a SpecError."""
    try:
        node = yaml.compose(text, Loader=_Loader)
        build = _Build()
        data = build.value(node, (), 0) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        words = " ".join(part for part in (error.context, error.problem) if part)
        raise fault_error([Fault((), words, "well-formed YAML")], lambda loc: line) from None
    except yaml.YAMLError as error:
        raise fault_error([Fault((), str(error), "well-formed YAML")]) from None
    except RecursionError:
        raise fault_error([Fault((), "…", f"at most {MAX_DEPTH} levels of nesting")]) from None
    if build.faults:
        raise fault_error(build.faults, build.line)
    return data, build.line


_BREAKS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ufeff]")
"""Characters that PyYAML would write plainly or in single quotes, and read back as a line's end, or not at all."""


def _text(dumper: _Dumper, text: str) -> ScalarNode:
    return dumper.represent_scalar(_PREFIX + "str", text, style='"' if _BREAKS.search(text) else None)


_Dumper.add_representer(str, _text)


def emit(data: Any) -> str:
    """Plain data as block-style YAML in the order of its keys."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None))


class _Build:
    """Nodes → plain data, with every fault noted on the way."""

    def __init__(self) -> None:
        self.lines: dict[Loc, int] = {}
        self.faults: list[Fault] = []
        self.count = 0
        self.open: set[int] = set()

    def line(self, loc: Loc) -> int:
        """The line of a path, or of the nearest thing around it."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, 0)

    def value(self, node: Node, loc: Loc, depth: int) -> Any:
        self.lines.setdefault(loc, node.start_mark.line + 1)
        self.count += 1
        if self.count > MAX_NODES or depth > MAX_DEPTH or id(node) in self.open:
            if not self.faults or self.faults[-1].expected != "a smaller document":
                self.faults.append(Fault(loc, "an alias of itself" if id(node) in self.open else "…", "a smaller document"))
            return None
        if isinstance(node, ScalarNode):
            return self.scalar(node, loc)
        self.open.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                return [self.value(item, (*loc, index), depth + 1) for index, item in enumerate(node.value)]
            return self.mapping(node, loc, depth)
        finally:
            self.open.discard(id(node))

    def mapping(self, node: Node, loc: Loc, depth: int) -> dict[str, Any]:
        assert isinstance(node, MappingNode)
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, ScalarNode) and key_node.tag != _PREFIX + "merge" else None
            if key is None:
                self.lines.setdefault((*loc, "?"), key_node.start_mark.line + 1)
                self.faults.append(Fault((*loc, "?"), getattr(key_node, "value", "…"), "a key that is plain text"))
                continue
            if key in data:
                at = (*loc, key)
                self.faults.append(Fault(at, key, f"each key once: it is given again in line {key_node.start_mark.line + 1}"))
                continue
            self.lines[(*loc, key)] = key_node.start_mark.line + 1
            data[key] = self.value(value_node, (*loc, key), depth + 1)
        return data

    def scalar(self, node: ScalarNode, loc: Loc) -> Any:
        text, tag = node.value, node.tag.removeprefix(_PREFIX)
        if tag == "str":
            return text
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() == "true"
        if tag in ("int", "float"):
            number = _number(text, tag)
            if number is not None:
                return number
        self.faults.append(Fault(loc, text, f"a value that {node.tag} can say" if tag in ("int", "float") else "no YAML tag"))
        return None


def _number(text: str, tag: str) -> int | float | None:
    if len(text) > 400:  # Python refuses longer integers by itself, with an error of its own
        return None
    try:
        if tag == "int":
            base = {"0o": 8, "0x": 16}.get(text[:2].lower(), 10)
            number = int(text[2:] if base != 10 else text, base)
            if str(number) == text:
                return number
            written = IntScalar(number)
            written.text = text
            return written
        value = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        if repr(value) == text:
            return value
        kept = FloatScalar(value)
        kept.text = text
        return kept
    except ValueError:
        return None
