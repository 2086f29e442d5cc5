"""`@action` marks a function and changes nothing; collecting follows the MRO."""

from __future__ import annotations

from typing import Any

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.declare.marks import actions_of
from tests.rollouts import play


class Base:
    """Base."""

    def reset(self, seed: int) -> str:
        return ""

    @action
    def one(self) -> Step:
        """One."""
        return Step("base one", 0.0, True)

    @action(name="second", noop={})
    def two(self) -> Step:
        """Two."""
        return Step("base two", 0.0, True)


class Child(Base):
    """Child."""

    def one(self) -> Step:
        """One, overridden."""
        return Step("child one", 0.0, True)

    @action
    def three(self) -> Step:
        """Three."""
        return Step("three", 0.0, True)


class Without(Child):
    """A child that takes an action away."""

    two = None  # type: ignore[assignment]


class Renamed(Child):
    """A child that marks its override anew."""

    @action(name="uno")
    def one(self) -> Step:
        """Uno."""
        return Step("uno", 0.0, True)


class Mixed(Renamed, Without):
    """Two bases."""


def names(cls: type) -> list[tuple[str, str]]:
    return [(name, method) for name, _, method in actions_of(cls)]


def test_actions_follow_the_mro_in_the_bases_order() -> None:
    assert names(Base) == [("one", "one"), ("second", "two")]
    assert names(Child) == [("one", "one"), ("second", "two"), ("three", "three")]
    assert names(Without) == [("one", "one"), ("three", "three")]
    assert names(Renamed) == [("uno", "one"), ("second", "two"), ("three", "three")]
    assert names(Mixed) == [("uno", "one"), ("three", "three")]


def test_the_function_comes_back_unchanged() -> None:
    def method(self: Any) -> None: ...

    assert action(method) is method
    assert action(text=True)(method) is method
    assert Child().one().observation == "child one"


def test_an_override_runs_in_the_base_s_place() -> None:
    for cls, tool, seen in ((Base, "one", "base one"), (Child, "one", "child one"), (Renamed, "uno", "uno")):
        app = TaskApp("a")
        app.environment("e")(cls)
        assert play(app, "constant", action={tool: {}}).trajectory.steps[0].observation == seen


def test_static_and_class_methods_can_be_actions() -> None:
    app = TaskApp("a")

    @app.environment("e")
    class Env:
        """Env."""

        def reset(self, seed: int) -> str:
            return ""

        @action
        @staticmethod
        def still(n: int) -> Step:
            """Static."""
            return Step(f"static {n}", 0.0, True)

        @classmethod
        @action
        def of_class(cls, n: int) -> Step:
            """Of the class."""
            return Step(f"{cls.__name__} {n}", 0.0, True)

    for tool, seen in (("still", "static 2"), ("of_class", "Env 2")):
        assert play(app, "constant", action={tool: {"n": 2}}).trajectory.steps[0].observation == seen
