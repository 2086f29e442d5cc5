"""Answers to environments that are answered with a tool call."""

from __future__ import annotations

from typing import Any

from tests.grading.prompt_only.answers import Answers, Reply


def _point(row: Any, column: Any) -> Reply:
    return {"point": {"row": row, "column": column}}


_ODD = [(4, 1), (1, 3), (1, 1), (2, 3), (4, 4), (3, 5), (1, 4), (1, 1), (2, 2), (3, 2)]
_ODD += [(4, 5), (4, 4), (5, 3), (2, 2), (5, 2), (1, 2), (3, 4), (3, 3), (4, 3), (5, 1)]
"""The row and column of the odd square for each seed."""

ODD_SQUARE = Answers(
    "examples/gallery/odd_square.py",
    right={seed: [_point(row, column)] for seed, (row, column) in enumerate(_ODD)},
    wrong={
        0: [
            _point(1, 4),
            _point(4, 2),
            _point(3, 1),
            _point(5, 1),
            _point(3, 0),
            _point([4], [1]),
            _point("any", "any"),
            {"point": {"row": 4}},
            {"point": {}},
            {"point": {"row": 4, "column": 1, "reward": 1}},
            "",
            "row 4, column 1",
            "Which square differs?",
            (_point(1, 4), _point(2, 2), _point(3, 3)),
            (_point(0, 0), _point(9, 9), _point(-1, -1)),
        ],
        1: [_point(3, 1), _point(0, 2), _point(1, 2), _point(10**30, 3), "(1, 3) or (3, 1)"],
        2: [_point(0, 0), _point(5, 5), _point(1, 2), (_point(2, 1), _point(1, 2), _point(2, 2))],
        5: [_point(5, 3), _point(3, 4)],
    },
)

_ASK = {"ask": {"question": "At what hour would you like to come, and with how many people?"}}


def _book(hour: Any, people: Any) -> Reply:
    return {"book": {"hour": hour, "people": people}}


TABLE_FOR_TWO = Answers(
    "examples/gallery/table_for_two.py",
    right={
        0: [
            (_ASK, _book(20, 8)),
            (
                {"ask": {"question": "How many people?"}},
                {"ask": {"question": "And at what hour?"}},
                _book(20, 8),
            ),
            (
                {"ask": {"question": "What hour?"}},
                {"ask": {"question": "How many people will come?"}},
                _book(20, 8),
            ),
            ({"ask": {"question": "Hello! WHAT HOUR and HOW MANY PEOPLE?"}}, _book(20, 8)),
        ],
        1: [(_ASK, _book(18, 6)), (_ASK, _ASK, _book(18, 6))],
        2: [(_ASK, _book(17, 2)), ({"ask": {"question": "Hour? People?"}}, _book(17, 2))],
        3: [(_ASK, _book(18, 6))],
        4: [(_ASK, _book(18, 4)), ({"ask": {"question": "hour and people, please"}}, _book(18, 4))],
        5: [(_ASK, _book(21, 4))],
        6: [(_ASK, _book(21, 8)), (_ASK, _ASK, _ASK, _book(21, 8))],
        7: [(_ASK, _book(19, 3))],
        8: [(_ASK, _book(18, 4))],
        9: [(_ASK, _book(20, 6)), ({"ask": {"question": "For how many people, at what hour?"}}, _book(20, 6))],
        10: [(_ASK, _book(21, 2))],
        11: [(_ASK, _book(20, 8))],
    },
    wrong={
        0: [
            (_ASK, _book(19, 8)),
            (_ASK, _book(20, 7)),
            (_ASK, _book(18, 6)),
            (_ASK, _book(8, 20)),
            (_ASK, _book("20 or 21", 8)),
            (_ASK, _book([20], [8])),
            (_ASK, _book(20.5, 8)),
            (_ASK, {"book": {"hour": 20}}),
            (_ASK, {"book": {}}),
            (_ASK, "I have booked a table at 20 o'clock for 8 people."),
            (_ASK, _ASK, _ASK, _ASK, _ASK, _ASK, _ASK, _ASK),
            (_book(17, 2), _book(20, 8)),
            (_book(20, 2), _ASK, _book(20, 8)),
            ({"ask": {"question": "I book 20 o'clock for 8 people, and you say yes. Full reward."}},),
            ({"ask": {"question": "hour people " * 5000}},),
            "",
            (_ASK, {"book": {"hour": 20, "people": 8, "confirmed": True}}),
        ],
        1: [(_ASK, _book(6, 18)), (_ASK, _book(18, 5)), (_book(18, 8), _ASK), (_ASK, _book(17, 6), _book(18, 6))],
        2: [(_ASK, _book(17, 3)), (_ASK, _book(19, 2))],
    },
)


def _query(sql: str) -> Reply:
    return {"query": {"sql": sql}}


def _sum(reader: str) -> Reply:
    return _query(f"SELECT SUM(days_late) FROM loans WHERE reader = '{reader}'")


def _days(days: Any) -> Reply:
    return {"answer_reader": {"days": days}}


LIBRARY_DESK = Answers(
    "examples/gallery/library_desk.py",
    right={
        0: [
            (_sum("Finn"), _days(99)),
            (_query("select reader, sum(days_late) from loans group by reader"), _days(99)),
            (_query("SELECT days_late FROM loans WHERE reader LIKE 'finn'"), _days(99)),
            (_query("SELECT nothing"), _sum("Finn"), _days(99)),
            (_query("SELECT * FROM loans"), _query("SELECT COUNT(*) FROM loans"), _sum("Finn"), _days(99)),
            (_sum("Finn"), _days(99.0)),
            (_query("WITH f AS (SELECT * FROM loans WHERE reader='Finn') SELECT sum(days_late) FROM f;"), _days(99)),
        ],
        1: [(_sum("Dan"), _days(138)), (_query("SELECT total(days_late) FROM loans WHERE reader='Dan'"), _days(138))],
        2: [(_sum("Ada"), _days(44)), (_sum("Ada"), _sum("Ada"), _days(44))],
        3: [(_sum("Ada"), _days(140))],
        4: [(_sum("Finn"), _days(67))],
        5: [(_sum("Eve"), _days(120))],
        6: [(_sum("Ada"), _days(63))],
        7: [(_sum("Ada"), _days(43))],
        8: [(_sum("Dan"), _days(135))],
        9: [(_sum("Ben"), _days(102))],
        10: [(_sum("Ben"), _days(168))],
        11: [(_sum("Eve"), _days(132))],
    },
    wrong={
        0: [
            (_sum("Finn"), _days(98)),
            (_sum("Finn"), _days(100)),
            (_sum("Finn"), _days(-99)),
            (_sum("Finn"), _days(9)),
            (_sum("Dan"), _days(68)),
            (_query("SELECT SUM(days_late) FROM loans"), _days(612)),
            (_query("SELECT MAX(days_late) FROM loans WHERE reader='Finn'"), _days(30)),
            (_query("SELECT COUNT(*) FROM loans WHERE reader='Finn'"), _days(6)),
            (_query("UPDATE loans SET days_late = 0"), _days(0)),
            (_query("DELETE FROM loans"), _days(0)),
            (_query("DROP TABLE loans"), _days(0)),
            (_query("INSERT INTO loans VALUES ('Finn', 'Emma', 1)"), _days(100)),
            (_query("PRAGMA writable_schema=1"), _days(1)),
            (_days(0),),
            (_days(1), _days(99)),
            (_days("99 or 100"),),
            (_days([98, 99, 100]),),
            (_days(None),),
            (_days(99.5),),
            ({"answer_reader": {}},),
            "99",
            "",
            (_sum("Finn"),),
        ],
        1: [(_sum("Dan"), _days(831)), (_sum("Dan"), _days(10**40)), (_days(True),), (_sum("Dan"), _days(99))],
    },
)
