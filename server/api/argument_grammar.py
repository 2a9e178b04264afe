"""Write grammar rules for a call's arguments in a model family's syntax, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import cast

from server.api.grammar_rules import literal
from server.api.own_values import OwnValues
from server.formats.description import SLOT
from server.formats.schemas import STRING, alternatives, limited, only_values, resolved, types_of
from server.formats.written_call import GEMMA_QUOTE
from server.grammar.definition import Definition, definition_of
from server.grammar.schema_form import Schema

_ANY = {"key": "KEY", "string": '("true" | "false")', "type": "/[a-z]{1,16}/"}
_ARRAY, _OBJECT = frozenset({"array"}), frozenset({"object"})
_MAX_ELEMENT_DEPTH = 4
"""Maximum depth of nested elements that must fit a schema; deeper elements are free text.

Twice: grammars of recursive schemas are larger.
"""
_MOST_ELEMENTS = 256
"""Maximum elements of one grammar that must fit a schema: llguidance takes 65,535 symbols in all."""
_TELLING = re.compile("⟨(string|type)⟩")
_ALL = frozenset({"string", "number", "boolean", "array", "object", "null"})
_ONE_LINE = '"\\n"?'
_KINDS = {"integer": "number", "number": "number", "boolean": "boolean", "array": "array", "null": "null"}


class ArgumentGrammar(OwnValues):
    """Base of CallGrammar: builds the rules for a call's arguments."""

    def begin(self, *, loose: bool) -> None:
        super().begin(loose=loose)
        self._n_elements = 0

    def arguments(self, schema: Schema) -> str:
        """Return an expression for a function's arguments, in a syntax other than JSON."""
        of_all = cast(Mapping[str, Schema], schema.get("properties") or {})
        needed = cast(Sequence[str], schema.get("required") or ())
        syntax = self.calls.arguments
        if not of_all and schema.get("additionalProperties") is not False:
            return self._any_arguments(syntax)
        rules = {
            key: self.rule(self._member_rule(syntax, key, resolved(one, schema)))
            for key, one in of_all.items()
        }
        if syntax == "parameters":
            return self.ordered(rules, needed)
        if syntax == "python":
            return self.ordered(rules, needed, ", ")
        return f'"{{" {self.ordered(dict(sorted(rules.items())), needed, ",")} "}}"'

    def _any_arguments(self, syntax: str) -> str:
        """Return an expression for arguments of any names and values, in the syntax with this name."""
        if syntax == "gemma":
            self.gemma_rules()
            return "g_object"
        if syntax == "python":
            self.python_rules()
            self.also("p_member: P_KEY p_value", r"P_KEY: /[A-Za-z_]\w{0,63}=/")
            return '(p_member (", " p_member)*)?'
        if "⟨nested⟩" in self.calls.parameter:
            return ""  # the closing tag repeats the key, which no rule can enforce for arbitrary keys
        self.also(r"KEY: /[A-Za-z_][\w.-]{0,63}/")
        return f"({self.rule(self._parameter_expression(None, {'type': 'string'}))})*"

    def _member_rule(self, syntax: str, key: str, schema: Schema) -> str:
        definition = definition_of(schema)
        if syntax == "python":
            value = self.python(schema)
            if definition:
                value = f"{literal(chr(34))} {self.held(definition, chr(34), in_json=True)}"
            return f"{literal(key + '=')} {value}"
        if syntax == "gemma":
            value = self.gemma(schema)
            if definition:
                value = f"{self.spelled(GEMMA_QUOTE)} {self.held(definition, GEMMA_QUOTE)}"
            return f"{literal(key + ':')} {value}"
        return self._parameter_expression(key, schema)

    def _parameter_expression(self, key: str | None, schema: Schema) -> str:
        """Return an expression for a parameter between tags. If `key` is None, any name is allowed."""
        types = types_of(schema)
        if _TELLING.search(self.calls.parameter) and types != STRING and key:
            return self._typed_parameter(key, schema, types or _ALL)
        return self._tagged_parameter(key, schema, types or STRING)

    def _typed_parameter(self, key: str, schema: Schema, types: frozenset[str]) -> str:
        """Return an expression for a parameter whose tag names the value's type.

        The expression has one alternative for each type in `types`. If the tag only distinguishes text from
        other types, it has one alternative for text and one for all other types.
        """
        others = sorted(types - STRING)
        kinds = (
            {_KINDS.get(one, one): [one] for one in others}
            if "⟨type⟩" in self.calls.parameter
            else {"": others}
        )
        each = [["string"]] * ("string" in types) + [some for some in kinds.values() if some]
        forms = (self._tagged_parameter(key, limited(schema, some), frozenset(some)) for some in each)
        return f"({' | '.join(forms)})"

    def _tagged_parameter(self, key: str | None, schema: Schema, types: frozenset[str]) -> str:
        text = "string" in types
        kind = next((_KINDS[one] for one in sorted(types) if one in _KINDS), "object")
        told = {"key": key or "", "string": str(text).lower(), "type": "string" if text else kind}
        parts = SLOT.split(self.calls.parameter)
        made, head = list[str](), ""
        for slot, fixed in zip(["", *parts[1::2]], parts[::2], strict=True):
            if slot in ("value", "cdata", "nested"):
                close = fixed.replace("\n", "") if self.loose else fixed
                if self.calls.parameter.endswith("⟨key⟩>"):  # the closing tag repeats the key
                    close = fixed + told["key"] + ">"
                is_limited = self._max_length(schema) is not None or not self._is_free(schema)
                if (text and is_limited) or definition_of(schema):
                    head = head.rstrip("\n")  # the line break is part of the value's rule
                return " ".join([*made, self.written(head), self._value_expression(schema, types, close)])
            if slot and key is None:
                made += [self.written(head), _ANY[slot]]
                head = fixed
            else:
                head += told.get(slot, "") + fixed
        raise AssertionError(self.calls.parameter)

    def _value_expression(self, schema: Schema, types: frozenset[str], close: str, depth: int = 0) -> str:
        if (definition := definition_of(schema)) is not None:
            return self._defined_text(definition, close)
        nested, values = "⟨nested⟩" in self.calls.parameter, only_values(schema)
        if nested and not values and (inner := self._elements_expression(schema, types, depth)):
            written = inner if depth else f"({inner} | {self.json(schema)})"
            return f"BLANK? {written} BLANK? {self.written(close)}"
        if self._is_free(schema) or (nested and not values and types & {"object", "array"}):
            ends = close.strip("\n")
            tail = close[len(close.rstrip("\n")) :] if not self.loose else "\n"
            behind = self.calls.behind_value if depth == 0 else ()
            return f"{self.text_until(ends, schema, behind)} {self.written(tail)}"
        if values or "string" in types:
            before = _ONE_LINE if "\n⟨" in self.calls.parameter else ""
            after = _ONE_LINE if "⟩\n" in self.calls.parameter else ""
            rest = f"{self.written(close.lstrip())} {'BLANK?' if self.loose else ''}"
            return f"{before} ({' | '.join(map(self._of_alternative, alternatives(schema)))}) {after} {rest}"
        blank = "BLANK?" if self.loose else ""
        return f"{blank} {self.python(schema)} {blank} {self.written(close)} {blank}"

    def _defined_text(self, definition: Definition, close: str) -> str:
        """Return an expression for text that matches a grammar or regex, and for its closing tag."""
        before = _ONE_LINE if "\n⟨" in self.calls.parameter else ""
        end = close.strip("\n") if self.loose else close.rstrip("\n")
        tail = "\n" if self.loose else close[len(close.rstrip("\n")) :]
        if self.loose and "⟩\n" in self.calls.parameter:
            held = self.held(definition, end, ends_line=True)
        else:
            held = self.held(definition, end)
        return f"{before} {held} {self.written(tail)}"

    def _is_free(self, schema: Schema) -> bool:
        """Return True if the schema allows any text."""
        return any(
            "enum" not in alternative and alternative.get("type", "string") == "string"
            for alternative in alternatives(schema)
        )

    def _of_alternative(self, alternative: Schema) -> str:
        """Return an expression for one alternative of a schema: its enum's values, or all of its type."""
        if "enum" not in alternative:
            return self.python(alternative)
        each = [
            [one] if isinstance(one, str) else [json.dumps(one), repr(one)] for one in alternative["enum"]
        ]
        return " | ".join(dict.fromkeys(literal(text) for texts in each for text in texts))

    def _elements_expression(self, schema: Schema, types: frozenset[str], depth: int) -> str:
        """Return an expression for a list, or an object with known keys, that is written as nested elements.

        Return "" for any other value, and if elements are too many or nested too deeply.

        Args:
            schema: The schema of the value.
            types: The JSON types that the schema allows.
            depth: Number of elements around the value.
        """
        items, of_all = schema.get("items"), cast(Mapping[str, Schema], schema.get("properties") or {})
        if types == _ARRAY and isinstance(items, Mapping):
            of_all = {"item": cast(Schema, items)}
        elif types != _OBJECT:
            return ""
        self._n_elements += len(of_all)
        if not of_all or depth >= _MAX_ELEMENT_DEPTH or self._n_elements > _MOST_ELEMENTS:
            return ""
        marker = self.calls.parameter.partition("<⟨key⟩")[0]
        rules: dict[str, str] = {}
        for key, one in of_all.items():
            inner = resolved(one, schema)
            value = self._value_expression(inner, types_of(inner) or STRING, f"{marker}</{key}>", depth + 1)
            rules[key] = self.rule(f"BLANK? {self.written(f'{marker}<{key}>')} {value} BLANK?")
        if types == _ARRAY:
            return f"{rules['item']}*"
        return self.in_any_order(rules, cast(Sequence[str], schema.get("required") or ()), "")
