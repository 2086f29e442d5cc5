"""Strict graders for text answers: equality, choice, number.

Each grader compares the whole answer. Additional text, a second candidate or a hedge scores 0.0, because a grader that
searched for the expected words would also reward a list of all possible words.

    @app.rubric
    def correct(answer_text: str, task: Row) -> Grade:
        return equal_text(answer_text, task.answer)
"""

from taskapp_kit.grading.graders import Grade, choice, equal_text, number

__all__ = ["Grade", "choice", "equal_text", "number"]
