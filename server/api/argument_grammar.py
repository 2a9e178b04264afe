"""Grammars of a call's arguments in the syntax of its family, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import cast

from server.formats.description import SLOT, Calls, tokens_in
from server.formats.schemas import STRING, only_values, resolved, types_of
from server.formats.written_call import GEMMA_QUOTE
from server.grammar.json_schema import Schema
from server.llama.backend import Vocabulary
from server.text.detokenize import control_tokens

_STRICT = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
_LOOSE = {"x-guidance": {"whitespace_pattern": r"[ \n]{0,8}"}}
"""Eight: two levels of indentation; without a bound, a weak model writes white space for ever."""
_ANY = {"key": "KEY", "string": '("true" | "false")', "type": "/[a-z]{1,16}/"}
_BOOLEAN, _ARRAY, _OBJECT = frozenset({"boolean"}), frozenset({"array"}), frozenset({"object"})
_TERMINALS = ["TEXT: /(?s:.+)/", r"BLANK: /[ \n]{1,8}/"]
_MOST_ORDERS = 3
"""Required parameters whose every order is allowed in free text: 3 have 6 orders, 4 would have 24. With more,
the schema's order holds."""
_LONGEST_LIMIT = 2_000
"""Largest maxLength that is held in text between tags: a lexer has a state for each character."""
_DEEPEST = 4
"""Elements within elements that are held to a schema; deeper ones are text. Twice: larger grammars of schemas
that refer to themselves."""
_MOST_ELEMENTS = 256
"""Elements within elements of a grammar, further ones are text: llguidance takes 65,535 symbols in all."""
_LINE = r"\n?"
_TELLING = re.compile("⟨(string|type)⟩")
_ALL = frozenset({"string", "number", "boolean", "array", "object", "null"})
_ONE_LINE = '"\\n"?'
_KINDS = {"integer": "number", "number": "number", "boolean": "boolean", "array": "array", "null": "null"}


class ArgumentGrammar:
    """What grammars of calls are made of."""

    def __init__(self, vocabulary: Vocabulary, calls: Calls) -> None:
        self._vocabulary = vocabulary
        self.calls = calls
        self.begin(loose=False)

    def begin(self, *, loose: bool) -> None:
        """A grammar. loose: with white space and in an order as the model likes."""
        self.loose = loose
        self.made: list[str] = list(_TERMINALS)
        self._n_elements = 0

    def also(self, *rules: str) -> None:
        """Rules of which the grammar has one each."""
        known = {rule.partition(":")[0] for rule in self.made}
        self.made += [rule for rule in rules if rule.partition(":")[0] not in known]

    def rule(self, body: str) -> str:
        """The name of a new rule."""
        name = f"r_{len(self.made)}"
        self.made.append(f"{name}: {body}")
        return name

    def json(self, schema: Schema) -> str:
        return f"%json {json.dumps({**schema, **(_LOOSE if self.loose else _STRICT)})}"

    def control(self, text: str) -> int | None:
        """The control token that this text is."""
        return next(iter(control_tokens(self._vocabulary, [text])), None)

    def tokens_but(self, *marks: int) -> str:
        """Any token but these, and none that ends the reply."""
        return f"<[^{','.join(map(str, sorted({*marks, *self._vocabulary.eog})))}]>"

    def written(self, text: str) -> str:
        """Fixed text of a pattern: control tokens by id, the rest as literals, white space apart: a lexer
        that takes the longest match would take one long word for the only way."""
        blank = r"([\s·]+)" if self.loose else r"(\n\s*)"
        parts = enumerate(re.split(blank, text if self.loose else text.replace("·", "")))
        free = self.loose or self.calls.parameter  # families of one syntax differ in line breaks
        return " ".join(
            self._spelled(part) if i % 2 == 0 else "BLANK?" if free else _literal(part)
            for i, part in parts
            if part
        )

    def _spelled(self, text: str) -> str:
        spelled: list[str] = []
        literal = ""
        for part in tokens_in(text):
            token = self.control(part)
            if token is None:
                literal += part
                continue
            spelled += [_literal(literal)] * bool(literal) + [f"<[{token}]>"]
            literal = ""
        return " ".join([*spelled, *[_literal(literal)] * bool(literal)])

    def until(self, name: str, mark: str, most: int | None = None) -> str:
        """A rule for text that ends with a mark; most: its characters before that."""
        before, after = self._lines
        token = self.control(mark)
        if token is not None and most is None:
            return f"{name}: {self.tokens_but(token)}* <[{token}]>"
        spelled = self._spelled(mark)
        if "<[" in spelled:  # text itself has no control tokens
            limited = most and self.rule(f"/(?s:{before}.{{1,{most}}}{after})/")
            return f"{name}: {limited or 'TEXT'}? {spelled}"
        text = ".*" if most is None else f"{before}.{{0,{most}}}{after}"
        return f"{name}[lazy]: /(?s:{text})/ {spelled}"

    @property
    def _lines(self) -> tuple[str, str]:
        """Line breaks around a parameter's value that are none of it."""
        before = _LINE if "\n⟨value⟩" in self.calls.parameter else ""
        return before, _LINE if self.loose and "⟨value⟩\n" in self.calls.parameter else ""

    def text_until(self, mark: str, schema: Schema) -> str:
        """A new rule for such text, which the schema may limit."""
        name = f"t_{len(self.made)}"
        self.made.append(self.until(name, mark, self._most(schema)))
        return name

    def _most(self, schema: Schema) -> int | None:
        """Characters of a text at most."""
        most = schema.get("maxLength")
        return most if isinstance(most, int) and 0 <= most <= _LONGEST_LIMIT else None

    def arguments(self, schema: Schema) -> str:
        """A function's arguments, in a syntax other than JSON."""
        of_all = cast(Mapping[str, Schema], schema.get("properties") or {})
        needed = cast(Sequence[str], schema.get("required") or ())
        syntax = self.calls.arguments
        if not of_all and schema.get("additionalProperties") is not False:
            return self._anything(syntax)
        rules = {
            key: self.rule(self._member(syntax, key, resolved(one, schema))) for key, one in of_all.items()
        }
        if syntax == "parameters":
            return self._in_any_order(rules, needed) if self.loose else self._in_order(rules, needed, "")
        between = ", " if syntax == "python" else ","
        if self.loose and rules:
            one = f"({' | '.join(rules.values())})"
            inner = f"({one} ({self.written(between)} {one})*){'' if needed else '?'}"
        else:
            inner = self._in_order(
                rules if syntax == "python" else dict(sorted(rules.items())), needed, between
            )
        return inner if syntax == "python" else f'"{{" {inner} "}}"'

    def _anything(self, syntax: str) -> str:
        """Arguments of which the schema says nothing."""
        if syntax == "gemma":
            self._gemma_rules()
            return "g_object"
        if syntax == "python":
            self._python_rules()
            self.also("p_member: P_KEY p_value", r"P_KEY: /[A-Za-z_]\w{0,63}=/")
            return '(p_member (", " p_member)*)?'
        if "⟨nested⟩" in self.calls.parameter:
            return ""  # the key is in what ends a value, too: no grammar of words can hold that
        self.also(r"KEY: /[A-Za-z_][\w.-]{0,63}/")
        return f"({self.rule(self._parameter(None, {'type': 'string'}))})*"

    def _in_order(self, rules: Mapping[str, str], needed: Sequence[str], between: str) -> str:
        """Each once at most, in the schema's order."""
        first = after = ""  # the rest, if nothing stands before it, and if something does
        for key, rule in reversed(list(rules.items())):
            here, further = f"{rule} {after}", f"{self.written(between)} {rule}"
            if key in needed:
                first, after = here, self.rule(f"{further} {after}")
            else:
                first = self.rule(f"{here} | {first}" if first else f"({here})?")
                after = self.rule(f"({further})? {after}")
        return first

    def _in_any_order(self, rules: Mapping[str, str], needed: Sequence[str]) -> str:
        optional = " | ".join(rule for key, rule in rules.items() if key not in needed)
        free = f" ({optional})* " if optional else " "
        must = [rule for key, rule in rules.items() if key in needed]
        orders = permutations(must) if len(must) <= _MOST_ORDERS else [must]
        return "(" + " | ".join(free + free.join(order) + free for order in orders) + ")"

    def _member(self, syntax: str, key: str, schema: Schema) -> str:
        if syntax == "python":
            return f"{_literal(key + '=')} {self._python(schema)}"
        if syntax == "gemma":
            return f"{_literal(key + ':')} {self._gemma(schema)}"
        return self._parameter(key, schema)

    def _parameter(self, key: str | None, schema: Schema) -> str:
        """A parameter between tags; with any name, if it has none."""
        types = types_of(schema)
        if _TELLING.search(self.calls.parameter) and not only_values(schema) and types != STRING and key:
            return self._telling(key, schema, types or _ALL)
        return self._tagged(key, schema, types or STRING)

    def _telling(self, key: str, schema: Schema, types: frozenset[str]) -> str:
        """A parameter that tells its value's type: a way for each type, or one for text, one for others."""
        others = sorted(types - STRING)
        kinds = (
            {_KINDS.get(one, one): [one] for one in others}
            if "⟨type⟩" in self.calls.parameter
            else {"": others}
        )
        ways = [self._tagged(key, schema, STRING)] * ("string" in types)
        for some in filter(None, kinds.values()):
            limits = [*schema.get("allOf", ()), {"type": some}]
            ways.append(self._tagged(key, {**schema, "allOf": limits}, frozenset(some)))
        return f"({' | '.join(ways)})"

    def _tagged(self, key: str | None, schema: Schema, types: frozenset[str]) -> str:
        text = "string" in types
        kind = next((_KINDS[one] for one in sorted(types) if one in _KINDS), "object")
        told = {"key": key or "", "string": str(text).lower(), "type": "string" if text else kind}
        parts = SLOT.split(self.calls.parameter)
        made, head = list[str](), ""
        for slot, fixed in zip(["", *parts[1::2]], parts[::2], strict=True):
            if slot in ("value", "cdata", "nested"):
                close = fixed.replace("\n", "") if self.loose else fixed
                if self.calls.parameter.endswith("⟨key⟩>"):  # the tag that ends it has the key, too
                    close = fixed + told["key"] + ">"
                if text and (
                    self._most(schema) is not None or only_values(schema)
                ):  # a line break is the value's
                    head = head.rstrip("\n")
                return " ".join([*made, self.written(head), self._value(schema, types, close)])
            if slot and key is None:
                made += [self.written(head), _ANY[slot]]
                head = fixed
            else:
                head += told.get(slot, "") + fixed
        raise AssertionError(self.calls.parameter)

    def _value(self, schema: Schema, types: frozenset[str], close: str, depth: int = 0) -> str:
        if values := only_values(schema):
            texts = (one if isinstance(one, str) else json.dumps(one) for one in values)
            before = _ONE_LINE if "\n⟨" in self.calls.parameter else ""
            after = _ONE_LINE if "⟩\n" in self.calls.parameter else ""
            rest = f"{self.written(close.lstrip())} {'BLANK?' if self.loose else ''}"
            return f"{before} ({' | '.join(map(_literal, texts))}) {after} {rest}"
        if "⟨nested⟩" in self.calls.parameter and (inner := self._elements(schema, types, depth)):
            written = inner if depth else f"({inner} | {self.json(schema)})"
            return f"BLANK? {written} BLANK? {self.written(close)}"
        if "string" in types or ("⟨nested⟩" in self.calls.parameter and types & {"object", "array"}):
            ends = close.strip("\n") if self.loose else close.rstrip("\n")
            tail = close[len(close.rstrip("\n")) :] if not self.loose else "\n"
            return f"{self.text_until(ends, schema)} {self.written(tail)}"
        blank = "BLANK?" if self.loose else ""
        return f"{blank} {self._scalar(schema, types)} {blank} {self.written(close)} {blank}"

    def _elements(self, schema: Schema, types: frozenset[str], depth: int) -> str:
        """A list, or an object whose keys are known, as elements; "" for anything else."""
        items, of_all = schema.get("items"), cast(Mapping[str, Schema], schema.get("properties") or {})
        if types == _ARRAY and isinstance(items, Mapping):
            of_all = {"item": cast(Schema, items)}
        elif types != _OBJECT:
            return ""
        self._n_elements += len(of_all)
        if not of_all or depth >= _DEEPEST or self._n_elements > _MOST_ELEMENTS:
            return ""
        mark = self.calls.parameter.partition("<⟨key⟩")[0]
        rules: dict[str, str] = {}
        for key, one in of_all.items():
            inner = resolved(one, schema)
            value = self._value(inner, types_of(inner) or STRING, f"{mark}</{key}>", depth + 1)
            rules[key] = self.rule(f"BLANK? {self.written(f'{mark}<{key}>')} {value} BLANK?")
        if types == _ARRAY:
            return f"{rules['item']}*"
        return self._in_any_order(rules, cast(Sequence[str], schema.get("required") or ()))

    def _scalar(self, schema: Schema, types: frozenset[str]) -> str:
        """JSON; booleans, lists and objects may be Python's, which some templates show."""
        if types == _BOOLEAN:
            return '("true" | "false" | "True" | "False")'
        return self._or_python(self.json(schema), types)

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
            return f"({' | '.join([self.json(schema), *(_literal(repr(one)) for one in values)])})"
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
        quote = self._spelled(GEMMA_QUOTE)
        if "enum" in schema and types == STRING:
            texts = " | ".join(f"{quote} {_literal(one)} {quote}" for one in schema["enum"])
            return f"({texts})"
        if types == STRING:
            return f"{quote} {self.text_until(GEMMA_QUOTE, schema)}"
        if types and not types & {"string", "object", "array"}:
            return self.json(schema)
        self._gemma_rules()
        kinds = [f"g_{one}" for one in sorted(types & {"string", "object", "array"})]
        return f"({' | '.join(kinds)})" if kinds and types <= {"string", "object", "array"} else "g_value"

    def _gemma_rules(self) -> None:
        quote = self._spelled(GEMMA_QUOTE)
        self.also(
            f"g_string: {quote} {self.text_until(GEMMA_QUOTE, {})}",
            'g_object: "{" (g_member ("," g_member)*)? "}"',
            "g_member: G_KEY g_value",
            'G_KEY: /[^,:{}\\[\\]<>" ]{1,128}:/',
            'g_array: "[" (g_value ("," g_value)*)? "]"',
            "g_value: g_string | g_object | g_array | G_WORD",
            r"G_WORD: /true|false|null|None|-?[0-9]{1,18}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?/",
        )


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
