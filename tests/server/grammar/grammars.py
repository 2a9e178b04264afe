"""Grammars that tests share: of the kinds people write, and those that a greedy lexer would read wrongly."""

from __future__ import annotations

JSON = r"""
root   ::= value
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" space (member ("," space member)*)? "}"
member ::= string ":" space value
array  ::= "[" space (value ("," space value)*)? "]"
string ::= "\"" (plain | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
plain  ::= [^"\\\x00-\x1F]
number ::= "-"? ("0" | [1-9] [0-9]{0,9}) ("." [0-9]{1,9})? ([eE] [-+]? [0-9]{1,2})?
space  ::= [ \n]{0,2}
"""

ARITHMETIC = r"""
root ::= (sum "=" blank number "\n")+
sum  ::= term ([-+*/] blank term)*
term ::= number | name | "(" blank sum ")" blank
name ::= [a-z] [a-z0-9_]* blank
number ::= [0-9]+ blank
blank ::= [ \t]*
"""

C_LIKE = r"""
root       ::= statement*
statement  ::= "if" blank "(" expression ")" blank block | name blank "=" blank expression ";\n" |
               "return" gap expression ";\n" | "//" [^\n]* "\n"
block      ::= "{\n" statement* "}\n"
expression ::= operand (("==" | "=" | "<=" | "<" | "+") operand)*
operand    ::= name | [0-9]+ | "(" expression ")"
name       ::= [a-zA-Z_] [a-zA-Z0-9_]*
blank      ::= " "?
gap        ::= " "+
"""

LIST = r"""
root ::= item+
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"""

CHESS = r"""
root   ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")*
move   ::= (piece | pawn | castle) [+#]?
piece  ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn   ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""

TAGGED = r"""
root ::= "<a>" (text | root)* "</a>"
text ::= [^<>]+
"""

USUAL = {
    "json": JSON,
    "arithmetic": ARITHMETIC,
    "c-like": C_LIKE,
    "list": LIST,
    "chess": CHESS,
    "tagged": TAGGED,
}

GREEDY = {
    "a class that takes in what follows": 'root ::= "(" root ")" | [a-z]* "x"',
    "one keyword inside another": 'root ::= "in" [a-z] | "int" "(" root? ")"',
    "anything, then an end": 'root ::= .* "." root?',
    "two characters with one first byte": 'root ::= "é"* "è" | "(" root ")"',
    "counted": 'root ::= "a"{1,3} "ab" root?',
    "alternatives of different lengths": 'root ::= ("a" | "ab") ("bc" | "c") root?',
    "left recursion": 'root ::= root "a" | root "ab" | "b"',
}
