"""Strict graders of an answer's text: equality, choice, number.

Each takes the whole answer. Text around the answer, a second candidate, or a hedge earns nothing, because a grader that
finds the right words anywhere also pays a list of all words.

    @app.rubric
    def correct(answer_text: str, task: Row) -> Grade:
        return equal_text(answer_text, task.answer)
"""

from taskapp_kit.grading.graders import Grade, choice, equal_text, number

__all__ = ["Grade", "choice", "equal_text", "number"]
