"""Strict graders: small pure functions that compare an answer with the expected one, and state why.

Each grader reads the whole answer. Text around the answer, a second candidate, or a hedge earns nothing, because a grader
that finds the right words anywhere also rewards a list of all words. If the prompt lets the policy write more than the
answer, select the part that contains it:

    @app.rubric
    def correct(answer_text: str, task: Row) -> Grade:
        return equal_text(tagged(answer_text), task.answer)
"""

from taskapp_kit.grading.answers import boxed, json_field, last_line, tagged
from taskapp_kit.grading.graders import choice, equal_text, similar_text
from taskapp_kit.grading.lists import same_items, same_sequence
from taskapp_kit.grading.numbers import number
from taskapp_kit.grading.sql import sql_result
from taskapp_kit.grading.structured import json_equal, json_valid
from taskapp_kit.records.scorecard import Grade

__all__ = [
    "Grade",
    "boxed",
    "choice",
    "equal_text",
    "json_equal",
    "json_field",
    "json_valid",
    "last_line",
    "number",
    "same_items",
    "same_sequence",
    "similar_text",
    "sql_result",
    "tagged",
]
