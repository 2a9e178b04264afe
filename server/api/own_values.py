"""Grammars of values in Python's and Gemma's writing, in llguidance's dialect of Lark."""

from __future__ import annotations

from typing import Any

from server.api.grammar_rules import GrammarRules, literal
from server.formats.schemas import STRING, only_values, types_of
from server.formats.spelling import in_gemma
from server.formats.written_call import GEMMA_QUOTE
from server.grammar.json_schema import Schema


class OwnValues(GrammarRules):
    """Values of arguments that are no JSON."""

    def _or_python(self, rule: str, types: frozenset[str]) -> str:
        """A value in JSON, or one of these types in Python."""
        self._python_rules()
        own = {"string": "P_STRING", "array": "p_array", "object": "p_object", "null": '"None"'}
        return f"({' | '.join([rule, *(own[one] for one in sorted(types) if one in own)])})"

    def _python_rules(self) -> None:
        self.also(
            r"P_STRING: /'([^'\\]|\\.)*'|\"([^\"\\]|\\.)*\"/",
            "P_WORD: /True|False|None|true|false|null|-?[0-9]{1,18}(\\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?/",
            "p_value: P_STRING | P_WORD | p_array | p_object",
            'p_array: "[" (p_value (", " p_value)*)? "]"',
            'p_object: "{" (P_STRING ": " p_value (", " P_STRING ": " p_value)*)? "}"',
        )

    def _python(self, schema: Schema) -> str:
        types = types_of(schema) or frozenset[str]()
        if values := only_values(schema):
            few = self.json({"enum": list(values)})
            return f"({' | '.join([few, *(literal(repr(one)) for one in values)])})"
        if not types:
            self._python_rules()
            return f"({self.json(schema)} | p_value)"
        words = {"boolean": '"True" | "False"', "null": '"None"'}
        if types and types <= set(words):
            return f"({' | '.join(words[one] for one in sorted(types))})"
        limited = types == STRING and set(schema) - {"type", "description", "title", "default", "$defs"}
        return self.json(schema) if limited else self._or_python(self.json(schema), types)

    def _gemma(self, schema: Schema) -> str:
        types = types_of(schema) or frozenset[str]()
        quote = self.spelled(GEMMA_QUOTE)
        if values := only_values(schema):
            return f"({' | '.join(map(self._one_in_gemma, values))})"
        if types == STRING:
            return f"{quote} {self.text_until(GEMMA_QUOTE, schema)}"
        if types and not types & {"string", "object", "array"}:
            return self.json(schema)
        self._gemma_rules()
        kinds = [f"g_{one}" for one in sorted(types & {"string", "object", "array"})]
        return f"({' | '.join(kinds)})" if kinds and types <= {"string", "object", "array"} else "g_value"

    def _one_in_gemma(self, value: Any) -> str:
        """One value. The text of a string has no control tokens."""
        if value is None:
            return '"null" | "None"'
        quote = self.spelled(GEMMA_QUOTE)
        return (
            f"{quote} {literal(value)} {quote}" if isinstance(value, str) else self.spelled(in_gemma(value))
        )

    def _gemma_rules(self) -> None:
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
