"""Right and wrong answers for each grader, at least forty of each.

`paid`: right answers. `refused`: right answers in a form that a strict grader does not accept; each counts as a false
negative in docs/environments/scoring.md. `wrong`: wrong answers; a grader that pays one has a false positive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from taskapp_kit.grading import (
    boxed,
    equal_text,
    json_equal,
    json_field,
    json_valid,
    last_line,
    number,
    same_items,
    same_sequence,
    similar_text,
    sql_result,
    tagged,
)  # fmt: skip
from taskapp_kit.grading.code import passes_tests
from taskapp_kit.records.scorecard import Grade

Answers = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """One grader with everything but the answer bound, and answers."""

    grade: Callable[[str], Grade]
    paid: Answers
    refused: Answers
    wrong: Answers


PLANETS = ["Mercury", "Venus", "Earth"]
ITEMS = Table(
    lambda answer: same_items(answer, PLANETS),
    (
        "Mercury, Venus, Earth", "Earth, Venus, Mercury", "Venus, Earth, Mercury", "mercury, venus, earth", "Mercury,Venus,Earth",
        "Mercury , Venus , Earth", "Mercury, Venus and Earth", "Earth, Mercury, and Venus", "Earth, Mercury and Venus.",
        "[Mercury, Venus, Earth]", "{Mercury, Venus, Earth}", "(Earth, Venus, Mercury)", '["Mercury", "Venus", "Earth"]',
        '["Earth","Mercury","Venus"]', '```json\n["Earth", "Mercury", "Venus"]\n```', "Mercury\nVenus\nEarth", "- Mercury\n- Venus\n- Earth",
        "* Earth\n* Venus\n* Mercury", "1. Mercury\n2. Venus\n3. Earth", "1) Earth\n2) Venus\n3) Mercury", "• Mercury\n• Venus\n• Earth",
        "(1) Mercury\n(2) Venus\n(3) Earth", "Mercury,\nVenus,\nEarth", "  Mercury, Venus, Earth  ", "Mercury, Venus, Earth.", "MERCURY, VENUS, EARTH",
        "**Mercury**, **Venus**, **Earth**", "`Mercury`, `Venus`, `Earth`", '"Mercury", "Venus", "Earth"', "'Earth', 'Mercury', 'Venus'",
        "Mercury,  Venus,   Earth", "\nMercury, Venus, Earth\n", "Mercury.\nVenus.\nEarth.", "+ Mercury\n+ Venus\n+ Earth", "Mercury\n\nVenus\n\nEarth",
        "- **Mercury**\n- **Venus**\n- **Earth**", "Venus, Mercury, Earth", "Mercury, Earth, Venus", "Venus, Earth and Mercury", "Earth\nMercury\nVenus",
        "[ Mercury, Venus and Earth ]", "1. Earth.\n2. Mercury.\n3. Venus.",
    ),
    (
        "The planets are Mercury, Venus and Earth", "Mercury; Venus; Earth", "Mercury Venus Earth", "Mercury & Venus & Earth",
        "Mercury, Venus, the Earth", "Mercury / Venus / Earth", "Mercury and Venus and Earth",
    ),
    (
        "", " ", "Mercury", "Mercury, Venus", "Mercury, Earth", "Mercury, Venus, Mars", "Mercury, Venus, Earth, Mars", "Mars, Mercury, Venus, Earth",
        "Mercury, Venus, Earth, Earth", "Mercury, Mercury, Venus", "Mercury, Venus, Venus, Earth", "Mercury, Venus, Earth, Mars, Jupiter, Saturn",
        "Mercury, Venus or Earth", "not Mercury, Venus, Earth", "Mercury, not Venus, Earth", "Mercury, Venus, Earth?", "Mercury, Venus, Earth (or Mars)",
        "Mercury, Venus, Earth and Mars", "all of them", "none", "[]", "{}", "Mercury, Venus, Earth, etc.", "Mercury, Venus, …", "Mercury, Venus,",
        ", Mercury, Venus, Earth", "Mercury, , Venus, Earth", '["Mercury", "Venus"]', '["Mercury", "Venus", "Earth", "Mars"]', '["Mercury, Venus, Earth"]',
        '{"Mercury": 1, "Venus": 1, "Earth": 1}', "- Mercury\n- Venus", "- Mercury\n- Venus\n- Earth\n- Mars", "Here:\n- Mercury\n- Venus\n- Earth",
        "- Mercury\n- Venus\n- Earth\nI am not sure.", "Mercury\nVenus\nMars", "Mercury, Venus, Earth. No: Mars.", "Mercury, Venus, Earthh",
        "Mercury, Venus, Mars or Earth", "Mercury-Venus-Earth", "<think>Mercury, Venus, Earth</think>", "[Mercury, Venus, Earth, Mars]",
        "Mercury Venus, Earth", "Mercury, Venus, Earth, none", "Mercury, Venus, Earth, Mercury, Venus, Earth", "[1, 2, 3]",
    ),
)  # fmt: skip
SEQUENCE = Table(
    lambda answer: same_sequence(answer, ["2", "3.5", "-1", "3.5"], item=number),
    (
        "2, 3.5, -1, 3.5", "2,3.5,-1,3.5", "[2, 3.5, -1, 3.5]", "(2, 3.5, -1, 3.5)", "2.0, 3.50, -1.0, 3.5", "2, 7/2, -1, 7/2", "2, 3.5, -1 and 3.5",
        "2, 3.5, -1, and 3.5", "2\n3.5\n-1\n3.5", "1. 2\n2. 3.5\n3. -1\n4. 3.5", "2, 3.5, −1, 3.5", "+2, 3.5, -1, +3.5", "2, 35e-1, -1, 3.5",
        "{2, 3.5, -1, 3.5}", "```\n[2, 3.5, -1, 3.5]\n```", "```json\n[2, 3.5, -1, 3.5]\n```", '["2", "3.5", "-1", "3.5"]', " 2 , 3.5 , -1 , 3.5 ",
        "2,\n3.5,\n-1,\n3.5", "* 2\n* 3.5\n* -1\n* 3.5", "• 2\n• 3.5\n• -1\n• 3.5", "**2**, **3.5**, **-1**, **3.5**", "`2`, `3.5`, `-1`, `3.5`",
        "2, 3.5, -1, 3.5.", "02, 3.5, -1, 3.5", "2e0, 3.5, -1e0, 3.5", "[2,3.5,-1,3.5]", "2.00, 3.5, -1, 3.500", "4/2, 7/2, -2/2, 7/2", "[2.0, 3.5, -1.0, 3.5]",
        "\n2, 3.5, -1, 3.5\n", "2,  3.5,  -1,  3.5", "1) 2\n2) 3.5\n3) -1\n4) 3.5", "(1) 2\n(2) 3.5\n(3) -1\n(4) 3.5", "2\n\n3.5\n\n-1\n\n3.5",
        "[2, 3.5, -1,\n 3.5]", "'2', '3.5', '-1', '3.5'", "2, .35e1, -1, 3.5", "+ 2\n+ 3.5\n+ -1\n+ 3.5", "0.2e1, 3.5, -1, 3.5",
    ),
    ("2 3.5 -1 3.5", "2; 3.5; -1; 3.5", "2 then 3.5 then -1 then 3.5", "The sequence is 2, 3.5, -1, 3.5", "two, 3.5, -1, 3.5"),
    (
        "", "2", "2, 3.5", "2, 3.5, -1", "2, 3.5, 3.5, -1", "3.5, 2, -1, 3.5", "2, -1, 3.5, 3.5", "3.5, -1, 3.5, 2", "2, 3.5, -1, 3.5, 3.5",
        "2, 3.5, -1, 3.5, 0", "0, 2, 3.5, -1, 3.5", "2, 3.5, 1, 3.5", "2, 3.5, -1, 3.6", "2, 3.5, -1, 35", "-2, 3.5, -1, 3.5", "2, 3,5, -1, 3,5",
        "2, 3.5, -1, 3.5 or 4", "2, 3.5, -1, about 3.5", "2, 3.5, not -1, 3.5", "2, 3.5, -1, 3.5?", "[2, 3.5, -1]", "[2, 3.5, -1, 3.5, 3.5]", "[[2, 3.5, -1, 3.5]]",
        "[]", "none", "2, 3.5, -1, …", "2, 3.5, -1, 3.5, …", "2..3.5", "2, , -1, 3.5", ", 2, 3.5, -1, 3.5", "2, 3.5, -1, 3.5,", "2, 3.5, -1, NaN",
        "[2, 3.5, -1, null]", "[2, 3.5, true, 3.5]", "2\n3.5\n-1", "2\n3.5\n-1\n3.5\nor not", "1. 2\n2. 3.5\n3. -1", "2, 3.5, -1 cm, 3.5", "2, 3.5, --1, 3.5",
        "-1, 2, 3.5, 3.5", "2, 3.5, -1, 3.5. Or reversed.", '{"0": 2}', "<think>2, 3.5, -1, 3.5</think>", "2 or 3, 3.5, -1, 3.5",
    ),
)  # fmt: skip
SPEED = Table(
    partial(number, expected=90, unit="km/h", units={"m/s": 3.6}, absolute_tolerance=0.5),
    (
        "90 km/h", "90km/h", "90", "90.0 km/h", "90.4 km/h", "89.6 km/h", "25 m/s", "25m/s", "25.0 m/s", "90 km / h", "**90 km/h**", "`90 km/h`", "90 km/h.",
        " 90 km/h ", "9e1 km/h", "9.0e1 km/h", "9 × 10^1 km/h", "180/2 km/h", "+90 km/h", '"90 km/h"', "90\u00a0km/h", "90\u202fkm/h", "90.49", "89.51",
        "24.9 m/s", "25.1 m/s", "2.5e1 m/s", "50/2 m/s", "25 m / s", "25 m/s.", "*25 m/s*", "_90 km/h_", "90  km/h", "90\nkm/h", "90.", "89.5 km/h",
        "90.5 km/h", "0090 km/h", "90.00 km/h", "900e-1 km/h", "'90'", "90 km/h\n",
    ),
    ("90 kph", "90 kilometers per hour", "It is 90 km/h", "90 km h^-1", "25 meters per second", "0.025 km/s", "≈ 90 km/h", "v = 90 km/h"),
    (
        "", " ", "km/h", "91 km/h", "89 km/h", "-90 km/h", "90 m/s", "25 km/h", "25", "90 mph", "90 KM/H", "90 km", "90 h", "90 km/h/h", "90 km/h or 80 km/h",
        "80 or 90 km/h", "80-100 km/h", "90 km/h?", "not 90 km/h", "about 90 km/h", "90 km/h (25 m/s)", "90 km/h 25 m/s", "90 km/h = 25 m/s", "90 + 0 km/h",
        "90,0 km/h", "9,0 km/h", "90.6 km/h", "89.4", "25.2 m/s", "24.8 m/s", "90%", "$90", "90 €", "900 km/h", "9 km/h", "90 km/h, no, 80 km/h", "[90 km/h]",
        "(90 km/h)", "ninety km/h", "90 90 km/h", "90 km/h km/h", "km/h 90", "inf km/h", "nan", "90 m/s m", "90 M/S", "<think>90 km/h</think>", "1e999999 km/h",
    ),
)  # fmt: skip
ORDER: Any = {"id": 7, "total": 12.5, "paid": True, "items": ["tea", "milk"], "note": None}
TEXT = '{"id": 7, "total": 12.5, "paid": true, "items": ["tea", "milk"], "note": null}'
OBJECT = Table(
    partial(json_equal, expected=ORDER),
    (
        TEXT, f" {TEXT} ", f"\n{TEXT}\n", f"```json\n{TEXT}\n```", f"```\n{TEXT}\n```", f"```JSON\n{TEXT}\n```", TEXT.replace(" ", ""), TEXT.replace(", ", ",\n"),
        TEXT.replace("7", "7.0"), TEXT.replace("12.5", "12.50"), TEXT.replace("12.5", "1.25e1"), TEXT.replace("12.5", "125e-1"), TEXT.replace("7", "7e0"),
        TEXT.replace("tea", "\\u0074ea"), TEXT.replace("id", "\\u0069d"), TEXT.replace("{", "{ "), TEXT.replace("}", " }"), TEXT.replace("[", "[ "),
        TEXT.replace("]", " ]"), TEXT.replace(":", " :"), TEXT.replace(": ", ":"), TEXT.replace(",", " ,"), TEXT.replace(", ", ",\t"), f"\t{TEXT}", f"{TEXT}\r\n",
        *('{' + ", ".join(parts) + "}" for parts in (
            ('"note": null', '"items": ["tea", "milk"]', '"paid": true', '"total": 12.5', '"id": 7'),
            ('"total": 12.5', '"id": 7', '"paid": true', '"items": ["tea", "milk"]', '"note": null'),
            ('"paid": true', '"note": null', '"id": 7', '"items": ["tea", "milk"]', '"total": 12.5'),
            ('"items": ["tea", "milk"]', '"note": null', '"id": 7', '"paid": true', '"total": 12.5'),
            ('"id": 7', '"paid": true', '"note": null', '"total": 12.5', '"items": ["tea", "milk"]'),
            ('"note": null', '"id": 7', '"total": 12.5', '"paid": true', '"items": ["tea", "milk"]'),
        )),
        TEXT.replace("milk", "mi\\u006ck"), TEXT.replace("7", "70e-1"), TEXT.replace("12.5", "12.5e0"), TEXT.replace("12.5", "12.5E+0"), TEXT.replace("7", "7E0"),
        f"```json  \n{TEXT}\n```", f"\n\n```json\n{TEXT}\n```\n", TEXT.replace("{", "{\n  ").replace("}", "\n}"), TEXT.replace("null", " null"), TEXT.replace("true", "true "),
    ),
    (f"The order is {TEXT}", TEXT.replace('"', "'"), TEXT.replace("null}", "null,}"), f"{TEXT};"),
    (
        "", " ", "{}", "[]", "null", "7", f"[{TEXT}]", f"{TEXT}{TEXT}", f"{TEXT}\n{TEXT}", f"{TEXT} or {{}}", TEXT[:-1], TEXT[1:], TEXT.replace("7", "8"),
        TEXT.replace("7", '"7"'), TEXT.replace("12.5", "12.51"), TEXT.replace("12.5", '"12.5"'), TEXT.replace("12.5", "-12.5"), TEXT.replace("true", "false"),
        TEXT.replace("true", "1"), TEXT.replace("true", '"true"'), TEXT.replace("true", "null"), TEXT.replace("null", "0"), TEXT.replace("null", '""'),
        TEXT.replace("null", "false"), TEXT.replace("null", "[]"), TEXT.replace('"tea", "milk"', '"milk", "tea"'), TEXT.replace('"tea", "milk"', '"tea"'),
        TEXT.replace('"tea", "milk"', '"tea", "milk", "milk"'), TEXT.replace('"tea", "milk"', '"Tea", "milk"'), TEXT.replace('["tea", "milk"]', '"tea, milk"'),
        TEXT.replace("id", "ID"), TEXT.replace(', "note": null', ""), TEXT.replace("}", ', "extra": 1}'), TEXT.replace("}", ', "id": 7}'),
        TEXT.replace("{", '{"id": 8, '), TEXT.replace("7", "NaN"), TEXT.replace("12.5", "Infinity"), TEXT.replace("12.5", "[12.5]"), TEXT.replace("12.5", "1e999"),
        f"<think>{TEXT}</think>", f"```json\n{TEXT}\n```\n```json\n{{}}\n```", f"// {TEXT}", "[" * 100_000, f'{{"a": {TEXT}}}', "Infinity", TEXT.replace("7", "7" * 5000),
    ),
)  # fmt: skip
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "pattern": "^[A-Z]"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "maxItems": 2},
        "parent": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
VALID = Table(
    partial(json_valid, schema=SCHEMA),
    (
        '{"name": "Ada", "age": 36}', '{"age": 36, "name": "Ada"}', '{"name": "A", "age": 0}', '{"name": "Ada", "age": 150}', '{"name": "Ada", "age": 36.0}',
        '{"name": "Ada", "age": 3.6e1}', '{"name": "Ada", "age": 36, "tags": []}', '{"name": "Ada", "age": 36, "tags": ["a"]}', '{"name": "Ada", "age": 36, "tags": ["b"]}',
        '{"name": "Ada", "age": 36, "tags": ["a", "b"]}', '{"name": "Ada", "age": 36, "tags": ["b", "a"]}', '{"name": "Ada", "age": 36, "parent": null}',
        '{"name": "Ada", "age": 36, "parent": {"name": "Bo", "age": 60}}', '{"name": "Ada", "age": 36, "parent": {"name": "Bo", "age": 60, "parent": null}}',
        '{"name": "Ada", "age": 36, "parent": {"name": "Bo", "age": 60, "tags": ["a"]}}', '```json\n{"name": "Ada", "age": 36}\n```', '```\n{"name": "Ada", "age": 36}\n```',
        ' {"name": "Ada", "age": 36} ', '{"name":"Ada","age":36}', '{\n "name": "Ada",\n "age": 36\n}', '{"name": "Ängström", "age": 1}'.replace("Ä", "A"),
        *(f'{{"name": "{name}", "age": {age}}}' for name, age in zip(
            ["Bo", "Cy", "Dee", "Eve", "Flo", "Gus", "Hal", "Ida", "Jo", "Kai", "Lea", "Max", "Ned", "Oz", "Pia", "Quin", "Rex", "Sue", "Tim", "Uma"], range(5, 145, 7), strict=True)),
    ),
    ('Here it is: {"name": "Ada", "age": 36}', "{'name': 'Ada', 'age': 36}", '{"name": "Ada", "age": 36,}'),
    (
        "", "{}", "[]", "null", "true", '"Ada"', "36", '{"name": "Ada"}', '{"age": 36}', '{"name": "", "age": 36}', '{"name": "ada", "age": 36}', '{"name": 7, "age": 36}',
        '{"name": null, "age": 36}', '{"name": ["Ada"], "age": 36}', '{"name": "Ada", "age": -1}', '{"name": "Ada", "age": 151}', '{"name": "Ada", "age": 36.5}',
        '{"name": "Ada", "age": "36"}', '{"name": "Ada", "age": true}', '{"name": "Ada", "age": null}', '{"name": "Ada", "age": [36]}', '{"name": "Ada", "age": 36, "x": 1}',
        '{"name": "Ada", "age": 36, "tags": "a"}', '{"name": "Ada", "age": 36, "tags": ["c"]}', '{"name": "Ada", "age": 36, "tags": ["a", "a"]}',
        '{"name": "Ada", "age": 36, "tags": ["a", "b", "a"]}', '{"name": "Ada", "age": 36, "tags": [1]}', '{"name": "Ada", "age": 36, "tags": {"a": 1}}',
        '{"name": "Ada", "age": 36, "tags": null}', '{"name": "Ada", "age": 36, "parent": "Bo"}', '{"name": "Ada", "age": 36, "parent": {}}',
        '{"name": "Ada", "age": 36, "parent": {"name": "bo", "age": 60}}', '{"name": "Ada", "age": 36, "parent": {"name": "Bo", "age": 60, "x": 1}}',
        '{"name": "Ada", "age": 36, "parent": []}', '{"name": "Ada", "age": 36}{"name": "Ada", "age": 36}', '[{"name": "Ada", "age": 36}]', '{"name": "Ada", "age": 36',
        '{"name": "Ada", "age": 36, "age": 37}', '{"name": "Ada", "age": NaN}', '{"name": "Ada", "age": 1e999}', "Ada, 36", '{"Name": "Ada", "Age": 36}',
        '{"name": " Ada", "age": 36}', '<think>{"name": "Ada", "age": 36}</think>', '{"name": "Ada", "age": 36} or {}',
    ),
)  # fmt: skip
SENTENCE = "The bridge across the river Tweed was opened in 1928 and is not open to lorries."
SIMILAR = Table(
    partial(similar_text, expected=SENTENCE),
    (
        SENTENCE, SENTENCE.upper(), SENTENCE.lower(), SENTENCE[:-1], f'"{SENTENCE}"', f"**{SENTENCE}**", f" {SENTENCE}\n", SENTENCE.replace(" ", "  "),
        *(SENTENCE.replace(old, new) for old, new in (
            ("bridge", "brigde"), ("bridge", "bidge"), ("bridge", "bridges"), ("across", "accross"), ("river", "River"), ("Tweed", "Twede"), ("Tweed", "tweed"),
            ("opened", "openned"), ("opened", "opend"), ("lorries", "lorrys"), ("lorries", "lories"), ("was", "is"), ("and is", "and it is"), ("The bridge", "A bridge"),
            ("the river", "river"), (" is not", ", is not"), ("1928", "1928,"), ("open to", "open for"), ("across", "over"),
            ("to lorries", "to trucks"), ("The ", "This "), ("was opened", "was open"), ("river", "rivver"), ("the river", "th river"), ("lorries.", "lorries!"),
            ("opened", "Opened"), ("The bridge", "Bridge"), ("the ", "teh "), ("bridge", "brdge"), ("Tweed", "Tweeed"), ("lorries", "lorriez"), ("across", "acros"), ("river", "rivr"),
        )),
    ),
    (
        "The Tweed bridge opened in 1928; lorries may not cross it.", SENTENCE.replace("not open", "closed"), f"{SENTENCE} It is made of steel, and it is painted green.",
        SENTENCE.replace("is not", "isn't"), SENTENCE.replace("in 1928", "in the year 1928"),
    ),
    (
        "", " ", ".", "The", "bridge", SENTENCE[:40], SENTENCE[40:], SENTENCE * 2, f"{SENTENCE} {SENTENCE}", SENTENCE[::-1], "x" * 80, " ".join(sorted(SENTENCE.split())),
        *(SENTENCE.replace(old, new) for old, new in (
            ("1928", "1929"), ("1928", "1828"), ("1928", "928"), ("1928", "19280"), ("1928", "-1928"), ("1928", "1928-29"), ("1928", "19.28"), ("1928", "1928 or 1929"),
            ("1928", "28"), ("in 1928 ", ""), ("is not", "is"), ("is not", "is now"), ("is not", "is not not"), ("was opened", "was not opened"), ("was opened", "was never opened"),
            ("is not open", "is open"), ("across", "not across"), ("and is", "and no longer is"), ("to lorries", "without lorries"), ("lorries", "no lorries"),
            ("was opened", "wasn't opened"), ("The", "No"), ("The bridge across the river Tweed", "It"), ("1928", "MCMXXVIII"), ("the river Tweed", "the Firth of Forth"),
            ("bridge across the river Tweed", "road tunnel under the Humber"), ("opened", "closed for good"), ("1928 and", "1928 and 1929 and"), ("1928", "$1928"), ("1928", "1928%"),
        )),
        f"Either: {SENTENCE} Or the tunnel was opened in 1928.", f"I do not know, but: {SENTENCE}", "The tunnel was opened in 1928.", f"{SENTENCE} Or in 1930.",
    ),
)  # fmt: skip
SHOP = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, total REAL);
INSERT INTO customers VALUES (1, 'Ada', 'Rome'), (2, 'Bo', 'Oslo'), (3, 'Cy', 'Rome'), (4, 'Dee', 'Bonn');
INSERT INTO orders VALUES (1, 1, 10.5), (2, 1, 20), (3, 2, 5), (4, 3, 7.25), (5, 3, 0.1), (6, 3, 0.2);
"""
OTHER_SHOP = SHOP.replace("(1, 'Ada', 'Rome')", "(1, 'Ada', 'Oslo'), (5, 'Eve', 'Rome')").replace(
    "(3, 2, 5)", "(3, 2, 5), (7, 5, 1)"
)
SPENT = "SELECT name, SUM(total) FROM customers JOIN orders ON customer = customers.id WHERE city = 'Rome' GROUP BY customers.id"
QUERY = Table(
    partial(sql_result, expected=SPENT, databases=[SHOP, OTHER_SHOP]),
    (
        SPENT, f"{SPENT};", f" {SPENT} ", f"```sql\n{SPENT}\n```", f"```\n{SPENT};\n```", SPENT.lower().replace("rome", "Rome"), SPENT.replace(" ", "\n"), f"-- spent\n{SPENT}",
        f"/* spent */ {SPENT}", f"{SPENT} ORDER BY name", f"{SPENT} ORDER BY 2 DESC", SPENT.replace("SUM(total)", "SUM(total) AS spent"), SPENT.replace("GROUP BY customers.id", "GROUP BY name"),
        SPENT.replace("JOIN", "INNER JOIN"), SPENT.replace("SUM", "TOTAL"), SPENT.replace("= 'Rome'", "IN ('Rome')"), SPENT.replace("= 'Rome'", "LIKE 'Rome'"), SPENT.replace("city =", "'Rome' = city AND city ="),
        SPENT.replace("customer = customers.id", "customers.id = customer"), SPENT.replace("WHERE", "AND"), f"SELECT * FROM ({SPENT})", f"WITH spent AS ({SPENT}) SELECT * FROM spent",
        "SELECT c.name, SUM(o.total) FROM customers c, orders o WHERE o.customer = c.id AND c.city = 'Rome' GROUP BY c.id", f"SELECT DISTINCT * FROM ({SPENT})",
        "SELECT c.name, SUM(o.total) FROM orders AS o LEFT JOIN customers AS c ON o.customer = c.id WHERE c.city = 'Rome' GROUP BY c.id",
        "SELECT name, (SELECT SUM(total) FROM orders WHERE customer = c.id) FROM customers c WHERE city = 'Rome'",
        "SELECT name, SUM(total) FROM (SELECT * FROM customers WHERE city = 'Rome') c JOIN orders ON customer = c.id GROUP BY c.id",
        "WITH t AS (SELECT customer, SUM(total) AS s FROM orders GROUP BY customer) SELECT name, s FROM customers JOIN t ON t.customer = id WHERE city = 'Rome'",
        "SELECT name, SUM(total) FROM customers JOIN orders ON customer = customers.id GROUP BY customers.id HAVING city = 'Rome'",
        "SELECT name, AVG(total) * COUNT(*) FROM customers JOIN orders ON customer = customers.id WHERE city = 'Rome' GROUP BY customers.id",
        "SELECT DISTINCT name, SUM(total) OVER (PARTITION BY customer) FROM customers JOIN orders ON customer = customers.id WHERE city = 'Rome'",
        "SELECT name, SUM(total) FROM customers NATURAL JOIN (SELECT customer AS id, total FROM orders) WHERE city = 'Rome' GROUP BY id", f"{SPENT} LIMIT 100", f"SELECT name, \"SUM(total)\" FROM ({SPENT})",
        SPENT.replace("SUM(total)", "ROUND(SUM(total), 4)"), SPENT.replace("name,", "name AS customer_name,"), SPENT.replace("SUM(total)", "SUM(total) + 0"), SPENT.replace("name,", "TRIM(name),"),
        SPENT.replace("'Rome'", "'Ro' || 'me'"), f"{SPENT} UNION {SPENT}", SPENT.replace("SUM(total)", "CAST(SUM(total) AS REAL)"), SPENT.replace("WHERE city = 'Rome'", "WHERE NOT city <> 'Rome'"),
    ),
    (f"The query is {SPENT}", SPENT.replace("SUM(total)", "SUM(total)::numeric"), SPENT.replace("SELECT name, SUM(total)", "SELECT SUM(total), name"), f"{SPENT}; -- done\n{SPENT}"),
    (
        "", ";", "SELECT", "SELECT 1", "SELECT 'Ada', 30.5 UNION SELECT 'Cy', 7.55", "SELECT 'Ada', 30.5 FROM customers UNION SELECT 'Cy', 7.55 FROM orders", "VALUES ('Ada', 30.5), ('Cy', 7.55)",
        SPENT.replace("SUM", "AVG"), SPENT.replace("SUM", "MAX"), SPENT.replace("SUM(total)", "COUNT(*)"), SPENT.replace("'Rome'", "'Oslo'"), SPENT.replace("'Rome'", "'rome'"), SPENT.replace(" WHERE city = 'Rome'", ""),
        SPENT.replace(" GROUP BY customers.id", ""), SPENT.replace("GROUP BY customers.id", "GROUP BY city"), SPENT.replace("name, ", ""), SPENT.replace("SUM(total)", "SUM(total), city"), SPENT.replace("=", "<>"),
        SPENT.replace("customer = customers.id", "customer = orders.id"), SPENT.replace(" ON customer = customers.id", ""), f"{SPENT} LIMIT 1", f"{SPENT} UNION ALL {SPENT}", f"{SPENT} HAVING SUM(total) > 10",
        SPENT.replace("SUM(total)", "SUM(total) + 0.01"), SPENT.replace("SUM(total)", "SUM(DISTINCT customer)"), SPENT.replace("name,", "UPPER(name),"), SPENT.replace("SUM(total)", "'' || SUM(total)"),
        "SELECT * FROM customers", "SELECT * FROM orders", "SELECT * FROM missing", "SELECT name FROM customers WHERE city = 'Rome'", f"{SPENT}; SELECT 1", f"DELETE FROM orders; {SPENT}", "DELETE FROM orders",
        "DROP TABLE customers", "UPDATE orders SET total = 1", "INSERT INTO orders VALUES (9, 9, 9)", "CREATE TABLE t AS SELECT 1", "ATTACH 'x.db' AS x", "PRAGMA table_info(orders)", "EXPLAIN QUERY PLAN " + SPENT,
        "SELECT load_extension('x')", "SELECT name, random() FROM customers", "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n", "SELECT a.name, b.name FROM customers a, customers b",
        "SELECT sql FROM sqlite_master", f"SELECT * FROM ({SPENT}) WHERE 0", f"<think>{SPENT}</think>", "SELECT name, NULL FROM customers WHERE city = 'Rome'", "VACUUM INTO 'x.db'",
    ),
)  # fmt: skip
CASES = [
    ([[3, 1, 2]], [1, 2, 3]),
    ([[]], []),
    ([[5, 5, -1]], [-1, 5, 5]),
    ([[2, 10, 9, 9]], [2, 9, 9, 10]),
    ([[1, -3]], [-3, 1]),
]
"""Tests of a function that returns a list of integers in ascending order."""


def body(*lines: str, header: str = "def solve(numbers):") -> str:
    return "\n".join([header, *(f"    {line}" for line in lines)])


SORTS = (
    body("return sorted(numbers)"), body("return sorted(numbers, reverse=False)"), body("numbers.sort()", "return numbers"), body("copy = numbers[:]", "copy.sort()", "return copy"), "solve = sorted",
    "solve = lambda numbers: sorted(numbers)", body("return list(sorted(numbers))"), body("return sorted(numbers, key=lambda number: number)"), body("return sorted(numbers)[:]"), body("return [*sorted(numbers)]"),
    body("return sorted(numbers, reverse=True)[::-1]"), body("import heapq", "return heapq.nsmallest(len(numbers), numbers)"), body("import heapq", "heapq.heapify(numbers)", "return [heapq.heappop(numbers) for _ in range(len(numbers))]"),
    body("out = []", "while numbers:", "    out.append(min(numbers))", "    numbers.remove(out[-1])", "return out"), body("import bisect", "out = []", "for n in numbers:", "    bisect.insort(out, n)", "return out"),
    body("if len(numbers) < 2: return numbers", "p, *r = numbers", "return solve([n for n in r if n < p]) + [p] + solve([n for n in r if n >= p])"), "import operator\n" + body("return sorted(numbers, key=operator.index)"),
    body("for i in range(len(numbers)):", "    for j in range(i):", "        if numbers[j] > numbers[i]:", "            numbers[i], numbers[j] = numbers[j], numbers[i]", "return numbers"), body("return sorted(list(numbers))"),
    body("from collections import Counter", "count = Counter(numbers)", "return [n for n in sorted(count) for _ in range(count[n])]"), body("print('sorting')", "return sorted(numbers)"), "def helper(n):\n    return sorted(n)\n" + body("return helper(numbers)"),
    body("import functools", "return sorted(numbers, key=functools.cmp_to_key(lambda a, b: a - b))"), body("try:", "    return sorted(numbers)", "except Exception:", "    return []"), body("return sorted(n for n in numbers)"),
    "from typing import List\n" + body("return sorted(numbers)", header="def solve(numbers: List[int]) -> List[int]:"), body("return sorted(numbers)", header="def solve(numbers, reverse=False):"), body("return sorted(*args)", header="def solve(*args):"),
    body("return sorted(filter(lambda n: True, numbers))"), body("return sorted(map(int, numbers))"), "class S:\n    def run(self, n):\n        return sorted(n)\n" + body("return S().run(numbers)"), body("import sys", "sys.stdout.write('x')", "return sorted(numbers)"),
    body("out = sorted(numbers)", "return out if out else []"), body("return [n for _, n in sorted(enumerate(numbers), key=lambda p: p[1])]"), body("yield_ = sorted(numbers)", "return yield_"), "# a comment\n\n" + body("return sorted(numbers)"),
    '"""A module."""\n' + body('"""Sort."""', "return sorted(numbers)"), body("return sorted(numbers)") + "\n\nprint(solve([2, 1]))", body("return sorted(numbers)") + "\n\nif __name__ == '__main__':\n    raise SystemExit", body("return (lambda x: sorted(x))(numbers)"),
)  # fmt: skip


def _passes(answer: str) -> Grade:
    return passes_tests(answer, "solve", CASES)


PROGRAM = Table(
    _passes,
    SORTS,
    (body("return tuple(sorted(numbers))"), body("return sorted(numbers)", header="def sort(numbers):"), f"```python\n{SORTS[0]}\n```", body("return [float(n) for n in sorted(numbers)]")),
    (
        "", " ", "pass", "solve", "solve = None", "solve = 7", "def solve(:", "return sorted(numbers)", body("return numbers"), body("return []"), body("return None"), body("pass"), body("return sorted(numbers)[::-1]"), body("return sorted(numbers, reverse=True)"),
        body("return sorted(set(numbers))"), body("return sorted(numbers, key=str)"), body("return sorted(numbers, key=abs)"), body("return [1, 2, 3]"), body("return {'[3, 1, 2]': [1, 2, 3], '[]': []}.get(str(numbers))"), body("return numbers.sort()"), body("return sorted(numbers)[1:]"),
        body("print(sorted(numbers))"), body("yield from sorted(numbers)"), body("return map(int, sorted(numbers))"), body("raise ValueError"), body("raise SystemExit"), body("import os", "os._exit(0)"), body("return sorted(numbers)", header="def solve():"), body("while True: pass"),
        body("return '[1, 2, 3]'"), body("return True"), body("class All(list):", "    __eq__ = lambda *_: True", "return All()"), body("class All:", "    __eq__ = lambda *_: True", "return All()"), body("import sys", "sys.stdout.write('0 [\"value\", [1, 2, 3]]\\n')", "os"),
        "import os\nos.write(1, b'0 [\"value\", [1, 2, 3]]\\n1 [\"value\", []]\\n2 [\"value\", [-1, 5, 5]]\\n3 [\"value\", [2, 9, 9, 10]]\\n')\nos._exit(0)", "import json\njson.dumps = lambda *a, **k: '[\"value\", [1, 2, 3]]'\n" + body("return []"), body("return sorted(numbers) + [0]"),
        body("return [n + 0.0 for n in sorted(numbers)]"), body("return [str(n) for n in sorted(numbers)]"), body("return {n: n for n in sorted(numbers)}"), body("return [[n] for n in sorted(numbers)]"), body("return sorted(numbers) if len(numbers) < 4 else numbers"),
        body("return [float('nan')]"), body("return solve(numbers)"), "import sys\nsys.exit(0)", "async def solve(numbers):\n    return sorted(numbers)", body("return [True, 2, 3] if numbers == [3, 1, 2] else sorted(numbers)"),
    ),
)  # fmt: skip


WRONG_REPLIES = (
    "", "Paris", "The answer is Paris.", "{0}London{1}", "{0}{1}", "{0} {1}", "{0}not Paris{1}", "{0}Paris or London{1}", "{0}Paris, London{1}", "{0}London or Paris{1}", "{0}Paris?{1}", "{0}Paris (France), or London{1}",
    "{0}Paris{1} {0}London{1}", "{0}Paris{1} No, {0}London{1}", "Paris {0}London{1}", "{0}London{1} Paris", "<think>{0}Paris{1}</think>", "<think>{0}Paris{1}</think> London", "<think>{0}Paris{1}</think> {0}London{1}", "<think>{0}Paris{1}",
    "{0}Paris", "Paris{1}", "{0}Paris{1} {0}", "{0}Paris{1} {0}{1}", "{0}Paris London{1}", "{0}Paris is wrong{1}", "{0}It is not Paris{1}", "{0}maybe Paris{1}", "{0}Pari{1}", "{0}London{1} {0}Rome{1}", "{0}answer{1}", "{0}...{1}", "{0}A{1}", "{0}anything but Paris{1}",
    "{0}Paris\nLondon{1}", "{0}all of them{1}", "{0}Paris and London{1}", "{0}Paris/London{1}", "{0}Paris; no, London{1}", "{0}The capital of France{1}", "{0}No answer{1}", "{0}Paris{1}{0}London{1}", "{0}Parisian{1}", "{0}-Paris{1}", "{0}London, not Paris{1}",
)  # fmt: skip
RIGHT_REPLIES = (
    "{0}Paris{1}", "{0} Paris {1}", "{0}paris{1}", "{0}PARIS{1}", "{0}Paris.{1}", "{0}**Paris**{1}", "{0}`Paris`{1}", '{0}"Paris"{1}', "I think of London first.\n{0}Paris{1}", "London? No.\n{0}Paris{1}", "<think>London</think>{0}Paris{1}",
    "<think>{0}London{1}</think>\n{0}Paris{1}", "thoughts</think>\n{0}Paris{1}", "{0}London{1}\n{0}Paris{1}", "{0}London{1}\nNo:\n{0}Paris{1}", "{0}Paris{1}\n{0}Paris{1}", "\n\n{0}Paris{1}\n\n", "# Answer\n{0}Paris{1}", "Step 1. Think.\nStep 2. Answer.\n{0}Paris{1}",
    "{0}Paris!{1}", "{0}'Paris'{1}", "{0}“Paris”{1}", "{0}*Paris*{1}", "{0}_Paris_{1}", "{0}Pa\u200bris{1}", "{0}\tParis{1}", "{0}Paris\u00a0{1}", "France has a capital.\n\n{0}Paris{1}", "{0}{1}\n{0}Paris{1}", "{0}Rome{1}\n{0}London{1}\n{0}Paris{1}",
    "The candidates are London, Paris and Rome.\n{0}Paris{1}", "Not London.\n{0}Paris{1}", "x = 1\n{0}Paris{1}", "```\nlondon\n```\n{0}Paris{1}", "- London\n- Rome\n{0}Paris{1}", "1\n2\n3\n{0}Paris{1}", "{0}«Paris»{1}", "Bien sûr.\n{0}Paris{1}",
    "<think></think>{0}Paris{1}", "<think>\n</think>\n\n{0}Paris{1}", "{0}Paris。{1}",
)  # fmt: skip


def in_slot(select: Callable[[str], str], before: str, after: str, *more_wrong: str) -> Table:
    """Return replies that contain the answer in a part of them."""

    def filled(replies: Answers) -> Answers:
        return tuple(reply.replace("{0}", before).replace("{1}", after) for reply in replies)

    paid = filled(RIGHT_REPLIES)
    # without a closing mark, an unclosed part is a whole one
    wrong = tuple(reply for reply in filled(WRONG_REPLIES) if reply not in paid)
    return Table(lambda reply: equal_text(select(reply), "Paris"), paid, (), (*wrong, *more_wrong))


JSON_WRONG = (
    *(reply.replace("{0}", '{"answer": "').replace("{1}", '"}') for reply in WRONG_REPLIES),
    '{"Answer": "Paris"}', '{"answer": ["Paris"]}', '{"answer": {"a": "Paris"}}', '{"answer": "Paris", "answer": "London"}', '["Paris"]', '{"answer": null}', '{"note": "Paris"}')  # fmt: skip
JSON_RIGHT = tuple(
    form.replace("Paris", f'{{"answer": "{city}"}}' if "{" not in form else city)
    for form in ("Paris", " Paris ", "\nParis\n", "```json\nParis\n```", "```\nParis\n```", "<think>x</think>Paris", "x</think>\nParis",
                 '{"answer": "Paris", "sure": true}', '{"why": "London is not in France", "answer": "Paris"}', '{\n  "answer": "Paris"\n}')
    for city in ("Paris", "paris", "Paris.", "**Paris**")
)  # fmt: skip

TABLES: dict[str, Table] = {
    "tagged": in_slot(
        tagged, "<answer>", "</answer>", "<answer>Paris</answer></answer>", "<answer>Paris</answer> <answer>"
    ),
    "last_line": in_slot(
        last_line,
        "Answer: ",
        "",
        "Answer: Paris\nActually, no.",
        "Answer: Paris\n\nLondon",
        "Paris\nAnswer:",
        "The Answer: Paris",
    ),
    "boxed": in_slot(boxed, r"\boxed{", "}", r"\boxed Paris", r"boxed{Paris}", r"\boxed{\text{Paris or London}}"),
    "json_field": Table(
        lambda reply: equal_text(json_field(reply), "Paris"), JSON_RIGHT, ('Sure: {"answer": "Paris"}',), JSON_WRONG
    ),
    "number with a unit": SPEED,
    "same_items": ITEMS,
    "same_sequence": SEQUENCE,
    "json_equal": OBJECT,
    "json_valid": VALID,
    "similar_text": SIMILAR,
    "sql_result": QUERY,
    "passes_tests": PROGRAM,
}
