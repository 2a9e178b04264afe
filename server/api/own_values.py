"""Write grammar rules for values in Python's or Gemma's syntax, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from server.api.grammar_rules import GrammarRules, literal
from server.formats.schemas import ANNOTATIONS, alternatives, definitions, only_values, resolved
from server.formats.spelling import in_gemma
from server.formats.written_call import GEMMA_QUOTE
from server.grammar.schema_form import Schema

_Writing: TypeAlias = Callable[[Schema], list[str]]
"""Returns an expression for each way to write a value that fits a schema."""

_MOST_VALUES = 256
"""Maximum nested values that have rules of their own in a grammar, and maximum values of one `enum`.

llguidance takes 65,535 symbols in all, and follows 1,000 alternatives at once.
"""
_MAX_OBJECT_KEYS = 32
"""Maximum properties of a schema whose objects may be written in Python; with more, they must be JSON."""
_LONGEST_LIST = 100
"""Largest minItems or maxItems that is enforced for a list that is not JSON."""
_OF_LISTS = frozenset({"type", "items", "minItems", "maxItems"})
"""Keywords enforced for lists written in Python; with any other keyword, a list must be JSON."""
_OF_OBJECTS = frozenset({"type", "properties", "required", "additionalProperties"})
"""Keywords enforced for objects written in Python; with any other keyword, an object must be JSON."""


class OwnValues(GrammarRules):
    """Builds rules for values in Python or in Gemma's syntax, instead of JSON."""

    def begin(self, *, loose: bool) -> None:
        super().begin(loose=loose)
        self._named: dict[tuple[_Writing, str], str] = {}
        self._unwritten: list[tuple[str, _Writing, Schema]] = []

    def python(self, schema: Schema) -> str:
        """Return an expression for a value in JSON or in Python."""
        values = only_values(schema)
        written = [self.json({"enum": list(values)} if values else schema), *self._in_python(schema)]
        return self._any_of(written)

    def gemma(self, schema: Schema) -> str:
        return self._any_of(self._in_gemma(schema))

    def ordered(self, rules: Mapping[str, str], needed: Sequence[str], between: str = "") -> str:
        """Return an expression for an object's members, in the schema's order or, if `loose`, in any order.

        rules: Rule of each member, by its key. needed: Keys of the required members. between: Separator.
        """
        return (self.in_any_order if self.loose else self.in_order)(rules, needed, between)

    def _any_of(self, written: Sequence[str]) -> str:
        while self._unwritten:
            name, writing, schema = self._unwritten.pop()
            self.made.append(f"{name}: {' | '.join(dict.fromkeys(writing(schema)))}")
        return f"({' | '.join(dict.fromkeys(written))})"

    def _nested_rule(
        self, writing: _Writing, schema: Any, whole: Schema, otherwise: str | None = None
    ) -> str:
        """Return the name of a rule for a nested value.

        Args:
            writing: Returns the alternatives for the value.
            schema: Schema of the value.
            whole: The schema that contains `schema`.
            otherwise: Expression to return once _MOST_VALUES nested values have rules; None: JSON.
        """
        inner = resolved(schema, whole)
        shape = {key: value for key, value in inner.items() if key not in definitions(inner)}
        found = (writing, json.dumps(shape, sort_keys=True))
        if found not in self._named:
            if len(self._named) >= _MOST_VALUES:
                return otherwise or f"({self.json(inner)})"
            self._named[found] = f"v_{len(self._named)}"
            self._unwritten.append((self._named[found], writing, inner))
        return self._named[found]

    def python_rules(self) -> None:
        """Add rules for any Python literal."""
        self.also(
            r"P_STRING: /'([^'\\]|\\.)*'|\"([^\"\\]|\\.)*\"/",
            "P_WORD: /True|False|None|true|false|null|-?[0-9]{1,18}(\\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?/",
            "p_value: P_STRING | P_WORD | p_array | p_object",
            'p_array: "[" (p_value (", " p_value)*)? "]"',
            'p_object: "{" (P_STRING ": " p_value (", " P_STRING ": " p_value)*)? "}"',
        )

    def _in_python(self, schema: Schema) -> list[str]:
        self.python_rules()
        each = alternatives(schema)
        if sum(len(alternative.get("properties") or ()) for alternative in each) > _MAX_OBJECT_KEYS:
            return [self.json(schema)]
        return [one for alternative in each for one in self._way_in_python(alternative)]

    def _way_in_python(self, alternative: Schema) -> list[str]:
        if "enum" in alternative:
            few = alternative["enum"] if len(alternative["enum"]) <= _MOST_VALUES else ()
            return [self.json({"enum": alternative["enum"]}), *(literal(repr(one)) for one in few)]
        limits = alternative.keys() - ANNOTATIONS - definitions(alternative).keys()
        match alternative.get("type"):
            case "boolean":
                return [self.json(alternative), '"True"', '"False"']
            case "array" if limits <= _OF_LISTS:
                return [self._list_in_python(alternative)]
            case "object" if limits <= _OF_OBJECTS:
                return [self._object_in_python(alternative)]
            case "string" if limits == {"type"}:
                return ["P_STRING"]
            case None if not limits:
                return ["p_value"]
            case _:
                return [self.json(alternative)]

    def _list_in_python(self, alternative: Schema) -> str:
        if alternative.keys().isdisjoint(_OF_LISTS - {"type"}):
            return "p_array"
        item = self._nested_rule(self._in_python, alternative.get("items"), alternative)
        return self._list_expression(alternative, item, self.written(", ")) or self.json(alternative)

    def _list_expression(self, alternative: Schema, item: str, between: str) -> str:
        """Return an expression for a list with as many items as the schema `alternative` allows.

        `item` and `between` are the expressions of an item and of a separator. Returns "" if a grammar cannot
        enforce the number of items.
        """
        least, most = alternative.get("minItems", 0), alternative.get("maxItems", _LONGEST_LIST)
        if alternative.get("items") is False or most == 0:
            return '"[" "]"'
        if not 0 <= least <= most <= _LONGEST_LIST:
            return ""
        number = (
            f"{{{max(least - 1, 0)},{most - 1}}}"
            if "maxItems" in alternative
            else f"{{{max(least - 1, 0)},}}"
        )
        return f'"[" ({item} ({between} {item}){number}){"" if least else "?"} "]"'

    def _object_in_python(self, alternative: Schema) -> str:
        of_all = cast(Mapping[str, Any], alternative.get("properties") or {})
        needed, others = (
            cast(Sequence[str], alternative.get("required") or ()),
            alternative.get("additionalProperties", True),
        )
        sign, between = self.written(": "), self.written(", ")
        if not {*needed} <= of_all.keys():
            return self.json(alternative)
        if not of_all and others is True:
            return "p_object"
        if not of_all and others is not False:
            one = f"P_STRING {sign} {self._nested_rule(self._in_python, others, alternative)}"
            return f'"{{" ({one} ({between} {one})*)? "}}"'
        rules = dict[str, str]()
        for key, schema in of_all.items():
            spelled = f"({literal(json.dumps(key, ensure_ascii=False))} | {literal(repr(key))})"
            rules[key] = self.rule(
                f"{spelled} {sign} {self._nested_rule(self._in_python, schema, alternative)}"
            )
        return f'"{{" {self.ordered(rules, needed, ", ")} "}}"'

    def gemma_rules(self) -> None:
        """Add rules for any value in Gemma's syntax."""
        quote = self.spelled(GEMMA_QUOTE)
        self.also(
            f"g_string: {quote} {self.text_until(GEMMA_QUOTE, {})}",
            'g_object: "{" (g_member ("," g_member)*)? "}"',
            "g_member: G_KEY g_value",
            'G_KEY: /[^,:{}\\[\\]<>" ]{1,128}:/',
            'g_array: "[" (g_value ("," g_value)*)? "]"',
            "g_value: g_string | g_object | g_array | G_WORD",
            r"G_WORD: /true|false|null|None|-?[0-9]{1,18}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?/",
        )

    def _in_gemma(self, schema: Schema) -> list[str]:
        self.gemma_rules()
        return [one for alternative in alternatives(schema) for one in self._way_in_gemma(alternative)]

    def _way_in_gemma(self, alternative: Schema) -> list[str]:
        if len(alternative.get("enum", ())) > _MOST_VALUES:
            return ["g_value"]
        if "enum" in alternative:
            return [self._one_in_gemma(one) for one in alternative["enum"]]
        match alternative.get("type"):
            case "string":
                return [f"{self.spelled(GEMMA_QUOTE)} {self.text_until(GEMMA_QUOTE, alternative)}"]
            case "array":
                item = self._nested_rule(self._in_gemma, alternative.get("items"), alternative, "g_value")
                return [self._list_expression(alternative, item, '","') or f'"[" ({item} ("," {item})*)? "]"']
            case "object":
                return [self._object_in_gemma(alternative)]
            case None:
                return ["g_value"]
            case _:
                return [self.json(alternative)]

    def _object_in_gemma(self, alternative: Schema) -> str:
        of_all = cast(Mapping[str, Any], alternative.get("properties") or {})
        others = alternative.get("additionalProperties", True)
        if not of_all and others is True:
            return "g_object"
        if not of_all and others is not False:
            one = f"G_KEY {self._nested_rule(self._in_gemma, others, alternative, 'g_value')}"
            return f'"{{" ({one} ("," {one})*)? "}}"'
        rules = {
            key: self.rule(
                f"{literal(key + ':')} {self._nested_rule(self._in_gemma, schema, alternative, 'g_value')}"
            )
            for key, schema in sorted(of_all.items())
        }
        return f'"{{" {self.ordered(rules, cast(Sequence[str], alternative.get("required") or ()), ",")} "}}"'

    def _one_in_gemma(self, value: Any) -> str:
        """Return an expression for one value in Gemma's syntax. Only a string's quotes are control tokens."""
        if value is None:
            return '"null" | "None"'
        quote = self.spelled(GEMMA_QUOTE)
        return (
            f"{quote} {literal(value)} {quote}" if isinstance(value, str) else self.spelled(in_gemma(value))
        )
