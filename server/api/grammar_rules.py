"""Write grammar rules and expressions for fixed text, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import permutations

from server.formats.description import Calls, tokens_in
from server.formats.schemas import definitions
from server.grammar.definition import INPUT, Definition, input_of_custom, text_node
from server.grammar.exact_classes import json_expression
from server.grammar.schema_form import Schema
from server.grammar.syntax import Repeat, Token, series
from server.llama.backend import Vocabulary
from server.text.detokenize import marker_tokens

_STRICT = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
_LOOSE = {"x-guidance": {"whitespace_pattern": r"[ \n]{0,8}"}}
"""Options of JSON in free text: at most eight characters of white space, two levels of indentation.

Without a limit, a weak model may write white space forever.
"""
_LONGEST_BLANK = 8  # characters of white space in free text: two levels of indentation
_TERMINALS = ["TEXT: /(?s:.+)/", f"BLANK: /[ \\n]{{1,{_LONGEST_BLANK}}}/"]
_LONGEST_LIMIT = 2_000
"""Largest maxLength that is enforced in tagged text: the lexer has a state for each character."""
_MOST_ORDERS = 3
"""Maximum required parameters that may come in any order in free text: 3 have 6 orders, 4 would have 24.

More parameters must come in the schema's order.
"""
_LINE = r"\n?"


class GrammarRules:
    """Builds rules of grammars for one vocabulary and one model family's call syntax."""

    def __init__(self, vocabulary: Vocabulary, calls: Calls) -> None:
        self._vocabulary = vocabulary
        self.calls = calls
        self.begin(loose=False)

    def begin(self, *, loose: bool) -> None:
        """Begin a grammar. If `loose`, the model may choose white space and the order of members."""
        self.loose = loose
        self.made: list[str] = list(_TERMINALS)
        # names of the rules of texts, by end marker, maximum and minimum characters
        self._texts: dict[tuple[str, int | None, int], str] = {}
        # names of the rules of text that continues after an end marker, by marker and maximum characters
        self._longer_texts: dict[tuple[str, int | None], str] = {}

    def also(self, *rules: str) -> None:
        """Add those rules whose names the grammar does not have yet."""
        known = {rule.partition(":")[0] for rule in self.made}
        self.made += [rule for rule in rules if rule.partition(":")[0] not in known]

    def rule(self, body: str) -> str:
        """Add a rule with this body under a new name, and return the name."""
        name = f"r_{len(self.made)}"
        self.made.append(f"{name}: {body}")
        return name

    def json(self, schema: Schema) -> str:
        """Return an expression for a JSON value that fits a schema; unused definitions are left out."""
        if (definition := input_of_custom(schema)) is not None:
            key, value = f'"{INPUT}"', self.held(definition, '"', in_json=True)
            words = ["{", key, ":", '"'] if self.loose else [f'{{{key}: "']
            blank = " BLANK? " if self.loose else " "
            return f'{blank.join(map(literal, words))} {value}{blank}"}}"'
        shared = definitions(schema)
        rest = {key: value for key, value in schema.items() if key not in shared}
        told = schema if '"$ref"' in json.dumps(rest) else rest
        return json_expression(told, _LOOSE if self.loose else _STRICT)

    def held(
        self, definition: Definition, close: str, *, in_json: bool = False, ends_line: bool = False
    ) -> str:
        """Add a rule for a text that fits a definition, followed by `close`; return the rule's name.

        Args:
            definition: The grammar or regex of the text.
            close: The marker after the text.
            in_json: True if the text is within a JSON string.
            ends_line: True if there may be a line break before `close`.
        """
        parts = ((self.control(part), part) for part in tokens_in(close))
        closing = [text_node(part) if token is None else Token(token) for token, part in parts]
        end = series([*[Repeat(text_node("\n"), 0, 1)] * ends_line, *closing])
        name, rules = definition.held(end, in_json=in_json, prefix=f"c{len(self.made)}_")
        self.made += rules
        return name

    def control(self, text: str) -> int | None:
        """Return the control token that has this text; None if there is none."""
        return marker_tokens(self._vocabulary, [text]).get(text)

    def tokens_but(self, *markers: int) -> str:
        """Return an expression for any token except `markers` and tokens that end a reply."""
        return f"<[^{','.join(map(str, sorted({*markers, *self._vocabulary.eog})))}]>"

    def written(self, text: str) -> str:
        """Return an expression for the fixed text of a pattern: control tokens by id, other text as literals.

        White space has separate expressions. llguidance's lexer takes the longest match, so one literal for
        several words would hide shorter literals with the same beginning.
        """
        blank = r"([\s·]+)" if self.loose else r"(\n\s*)"
        parts = enumerate(re.split(blank, text if self.loose else text.replace("·", "")))
        free = self.loose or self.calls.parameter  # models of one syntax differ in line breaks
        return " ".join(
            self.spelled(part) if i % 2 == 0 else "BLANK?" if free else literal(part)
            for i, part in parts
            if part
        )

    def spelled(self, text: str) -> str:
        found: list[str] = []
        plain = ""
        for part in tokens_in(text):
            token = self.control(part)
            if token is None:
                plain += part
                continue
            found += [literal(plain)] * bool(plain) + [f"<[{token}]>"]
            plain = ""
        return " ".join([*found, *[literal(plain)] * bool(plain)])

    def until(self, name: str, marker: str, most: int | None = None, least: int = 0) -> str:
        """Return a rule named `name` for text and the marker after it.

        The text has `least` to `most` characters; None: any number.
        """
        before, after = self._line_breaks
        token = self.control(marker)
        if token is not None and most is None:
            return f"{name}: {self.tokens_but(token)}* <[{token}]>"
        spelled = self.spelled(marker)
        if "<[" in spelled:  # no control token is part of TEXT
            limited = most and self.rule(f"/(?s:{before}.{{{max(1, least)},{most}}}{after})/")
            return f"{name}: {limited or 'TEXT'}{'' if least else '?'} {spelled}"
        text = ".*" if most is None else f"{before}.{{{least},{most}}}{after}"
        return f"{name}[lazy]: /(?s:{text})/ {spelled}"

    @property
    def _line_breaks(self) -> tuple[str, str]:
        """Return regexes for the line break before and after a parameter's value, "" for none."""
        before = _LINE if "\n⟨value⟩" in self.calls.parameter else ""
        return before, _LINE if "⟨value⟩\n" in self.calls.parameter else ""

    def text_until(self, marker: str, schema: Schema, behind: Sequence[str] = ()) -> str:
        """Return an expression for text and the marker that ends it, limited by the schema's maxLength.

        Args:
            marker: The marker that ends the text.
            schema: The schema of the text.
            behind: The marker ends the text only if one of these texts follows it; otherwise it is part of
                the text. Empty: the first marker ends the text.
        """
        most = self._max_length(schema)
        if most is None:
            more = f" (BLANK? {self._more_after_marker(marker, behind)})*" if behind else ""
            return self._text_rule(marker) + more
        half = (most - len(marker) - _LONGEST_BLANK) // 2
        if not behind or half < 1:
            return self._text_rule(marker, most)
        # each part gets half of the limit, because a grammar cannot limit their sum
        more = self._more_after_marker(marker, behind, half)
        return (
            f"({self._text_rule(marker, half)} (BLANK? {more})? | {self._text_rule(marker, most, half + 1)})"
        )

    def _text_rule(self, marker: str, most: int | None = None, least: int = 0) -> str:
        """Return the name of the rule that until() makes for these arguments; add the rule if it is new."""
        found = (marker, most, least)
        if found not in self._texts:
            self._texts[found] = f"t_{len(self.made)}"
            self.made.append(self.until(self._texts[found], marker, most, least))
        return self._texts[found]

    def _more_after_marker(self, marker: str, behind: Sequence[str], most: int | None = None) -> str:
        """Add a rule for text after a marker that did not end the text, up to the next marker.

        Returns the rule's name.

        Args:
            marker: The marker.
            behind: Texts that show that a marker ended the text. The rule's text begins with none of them.
            most: Maximum characters of the text; None: any number.
        """
        if (marker, most) in self._longer_texts:
            return self._longer_texts[marker, most]
        self._longer_texts[marker, most] = name = f"m_{len(self.made)}"
        later = rf"(?s:([^ \n]|[ \n]{{{_LONGEST_BLANK + 1}}}).*)"
        others = [one for one in behind if not marker.startswith(one)]
        again = [f"{spelled_in_regex(one)}[^\\/]" for one in behind if marker.startswith(one)]
        not_behind = f"~/(?s:\\s*({'|'.join([*map(spelled_in_regex, others), *again])}).*)/"
        if "<[" in (spelled := self.spelled(marker)):
            fits = "" if most is None else f" & /(?s:.{{1,{most}}})/"
            self.made += [
                f"{name.upper()}: /{later}/ & {not_behind}{fits}",
                f"{name}: {name.upper()}? {spelled}",
            ]
        else:
            fits = "" if most is None else f" & /(?s:.{{1,{most + len(marker)}}})/"
            text = f"/({later})?{spelled_in_regex(marker)}/"
            self.made += [f"{name.upper()}: {text} & {not_behind}{fits}", f"{name}[lazy]: {name.upper()}"]
        return name

    def _max_length(self, schema: Schema) -> int | None:
        """Return the schema's maxLength; None if it is absent or too large for a lexer to enforce."""
        most = schema.get("maxLength")
        return most if isinstance(most, int) and 0 <= most <= _LONGEST_LIMIT else None

    def in_order(self, rules: Mapping[str, str], needed: Sequence[str], between: str) -> str:
        """Return an expression for members in the schema's order, each at most once.

        Args:
            rules: Expression of each member, by key, in the schema's order.
            needed: Keys of the required members.
            between: Text between two members.
        """
        first = after = ""  # expressions for the members done so far: if they come first, or after others
        for key, rule in reversed(list(rules.items())):
            here, further = f"{rule} {after}", f"{self.written(between)} {rule}"
            if key in needed:
                first, after = here, self.rule(f"{further} {after}")
            else:
                first = self.rule(f"{here} | {first}" if first else f"({here})?")
                after = self.rule(f"({further})? {after}")
        return first

    def in_any_order(self, rules: Mapping[str, str], needed: Sequence[str], between: str) -> str:
        optional = " | ".join(rule for key, rule in rules.items() if key not in needed)
        sign = self.written(between)
        before, after = (f"(({optional}) {sign})*", f"({sign} ({optional}))*") if optional else ("", "")
        must = [rule for key, rule in rules.items() if key in needed]
        if not must:
            return f"(({optional}) {after})?" if optional else ""
        orders = permutations(must) if len(must) <= _MOST_ORDERS else [must]
        parting = f" {after} {sign} "
        return f"({' | '.join(f'{before} {parting.join(order)} {after}' for order in orders)})"


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def spelled_in_regex(text: str) -> str:
    """Return a regex that matches this text, for use between slashes in a grammar."""
    return re.escape(text).replace("/", chr(92) + "/").replace(chr(92) + "\n", chr(92) + "n")
