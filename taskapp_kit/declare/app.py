"""`TaskApp`, whose decorators collect the declarations of an app. `freeze()` checks them."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from taskapp_kit.declare.declarations import NOT_GIVEN, Declaration, Declarations, F, Names, NotGiven
from taskapp_kit.declare.source_location import calling_line
from taskapp_kit.declare.specs import MAX_REFUSALS
from taskapp_kit.declare.tasks import Rows
from taskapp_kit.records.scorecard import Blend

if TYPE_CHECKING:
    from fastapi import FastAPI

    from taskapp_kit.declare.specs import AppSpec
    from taskapp_kit.services.service import ServiceHandle


C = TypeVar("C", bound=type)
Exposure = Literal["public", "local"]


class TaskApp(Declarations):
    """A task app: its environments, actions, rubrics, judges and policies.

    The decorators record a declaration and return the decorated object unchanged.

    Args:
        name: Name of the app. It is also the name of the service in the HTTP API.
        version: Version of the app, stored with each rollout.
        description: Description that callers see. Defaults to the docstring of the module that creates the app.
        reward: Weights of the return, the events score and the outcome score in the reward. The default depends on
            the declared criteria; see docs/environments/scoring.md.
        system_prompt: First message to the model. By default, the kit builds it from the declarations.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "1.0.0",
        description: str = "",
        reward: Blend | None = None,
        system_prompt: str | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.description = description
        self.reward = reward
        self.system_prompt = system_prompt
        # The author's file: relative paths start in its directory, and its docstring describes the app.
        frame = sys._getframe(1)
        self.file = Path(frame.f_code.co_filename)
        self.docstring = frame.f_globals.get("__doc__") or ""
        self.place = calling_line(1)
        self.reference: str | None = None
        """The reference that `find_app` used to load the app, or None if the app was imported directly. Other
        processes load the app with this reference."""
        self.declared = []
        self._spec: AppSpec | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"TaskApp({self.name!r}, version={self.version!r})"

    def path(self, name: str | Path) -> Path:
        """Return the path of a file next to the author's file, and mark the file for upload by `taskapp deploy`.

        Args:
            name: Path of the file, relative to the author's file.
        """
        path = (self.file.parent / name).resolve()
        self._declare(Declaration("path", str(name), path, {}, calling_line(1)), again=True)
        return path

    # -- environments ---------------------------------------------------------------------------------------------

    @overload
    def environment(self, name: C, /) -> C: ...
    @overload
    def environment(
        self,
        name: str | None = None,
        *,
        splits: Mapping[str, range] | None = None,
        tasks: Mapping[str, Rows] | None = None,
        row: type | None = None,
        prompt: str | None = None,
        max_steps: int | str | None = None,
        max_turns: int | NotGiven | None = NOT_GIVEN,
        max_refusals: int | None = MAX_REFUSALS,
        step_timeout_seconds: float | None = None,
        isolation: Literal["thread", "process"] = "thread",
        models: Sequence[str] = (),
        reward_range: tuple[float, float] | None = None,
        baselines: Mapping[str, float] | None = None,
        accept: Mapping[str, str] | None = None,
        version: str = "1",
        tags: Sequence[str] = (),
    ) -> Callable[[C], C]: ...
    def environment(
        self,
        name: Any = None,
        *,
        splits: Mapping[str, range] | None = None,
        tasks: Mapping[str, Rows] | None = None,
        row: type | None = None,
        prompt: str | None = None,
        max_steps: int | str | None = None,
        max_turns: int | NotGiven | None = NOT_GIVEN,
        max_refusals: int | None = MAX_REFUSALS,
        step_timeout_seconds: float | None = None,
        isolation: Literal["thread", "process"] = "thread",
        models: Sequence[str] = (),
        reward_range: tuple[float, float] | None = None,
        baselines: Mapping[str, float] | None = None,
        accept: Mapping[str, str] | None = None,
        version: str = "1",
        tags: Sequence[str] = (),
        **unknown: Any,
    ) -> Any:
        """Declare a class as an environment. The first environment declared is the app's default.

        Args:
            name: Name of the environment. Defaults to the class's name in snake case: `WordGame` becomes `word_game`.
            splits: Disjoint ranges of seeds, by split name.
            tasks: Task rows by split name, as an alternative to `splits`. Each value is a list, the path of a JSONL
                file or a callable that returns rows. The seed of an episode is the index of its row.
            row: Pydantic model or dataclass that validates each row. By default, rows are plain dicts.
            prompt: System prompt of this environment.
            max_steps: Maximum number of steps, or the name of the constructor parameter that sets it.
            max_turns: Maximum number of turns of the policy, or None for no limit. Defaults to 1000 if `max_steps` is
                not set.
            max_refusals: Maximum number of consecutive replies without an accepted action, or None for no limit.
            step_timeout_seconds: Time limit of each call to the environment, in seconds.
            isolation: "thread" runs the environment in a thread of the server. "process" runs it in a separate process.
            models: Roles of the models that the environment calls with `context.model(role)`.
            reward_range: Lowest and highest reward of a step.
            baselines: Highest acceptable mean reward of each policy, such as `{"random": 0.2}`.
            accept: Checks of `taskapp doctor` whose findings are intended, each with a reason for the reports.
            version: Version of the environment, stored with each rollout.
            tags: Labels of the environment, which `/info` and the viewer show.

        Returns:
            A decorator that returns the class unchanged.
        """
        place = calling_line(1)

        def decorate(cls: C, name: str | None = name) -> C:
            options = {
                "splits": splits,
                "tasks": tasks,
                "row": row,
                "prompt": prompt,
                "max_steps": max_steps,
                "max_turns": max_turns,
                "max_refusals": max_refusals,
                "step_timeout_seconds": step_timeout_seconds,
                "isolation": isolation,
                "models": models,
                "reward_range": reward_range,
                "baselines": baselines,
                "accept": accept,
                "version": version,
                "tags": _tags(tags),
            }
            if name is None:
                name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", getattr(cls, "__name__", "environment")).lower()
            self._declare(Declaration("environment", name, cls, options, place, unknown=tuple(unknown)))
            return cls

        return decorate(name, None) if isinstance(name, type) else decorate

    def tasks(
        self,
        name: str,
        *,
        row: type | None = None,
        prompt: str | Callable[[Any], str] | None = None,
        rows: Rows | None = None,
        splits: Mapping[str, Rows] | None = None,
        max_turns: int | None = 1,
        models: Sequence[str] = (),
        accept: Mapping[str, str] | None = None,
        version: str = "1",
        tags: Sequence[str] = (),
        **further: Rows,
    ) -> None:
        """Declare a single-turn environment: it shows the prompt of a row, and the policy's answer ends the episode.

        If a model's reply contains no text, the empty string is scored.

        Args:
            name: Name of the environment.
            row: Pydantic model or dataclass that validates each row. By default, rows are plain dicts.
            prompt: Format string whose placeholders are public fields of the row, or `fn(row) -> str`. Required.
            rows: A single source for all splits. Each split is then a range of row numbers, starting at 0:
                `rows="q.jsonl", train=range(40), test=range(40, 50)`. Seeds start at 0 within each split.
            splits: Rows by split name. Needed only for splits whose names are parameters of this method.
            max_turns: Maximum number of turns. If it is above 1, the policy may try again after a rejected answer. The
                first accepted answer ends the episode.
            models: Roles of the models that the environment calls.
            accept: Checks of `taskapp doctor` whose findings are intended, each with the reason.
            version: Version of the environment, stored with each rollout.
            tags: Labels of the environment, which `/info` and the viewer show.
            further: The splits, by name. The value of each split is a list of rows, the path of a JSONL file relative
                to the author's file, or a callable that returns rows.
        """
        options = {
            "row": row,
            "prompt": prompt,
            "rows": rows,
            "max_turns": max_turns,
            "models": models,
            "accept": accept,
            "version": version,
            "tags": _tags(tags),
            "tasks": splits,
            "keywords": further,
        }
        self._declare(Declaration("tasks", name, None, options, calling_line(1)))

    # -- scoring --------------------------------------------------------------------------------------------------

    @overload
    def rubric(self, function: F, /) -> F: ...
    @overload
    def rubric(
        self,
        *,
        of: Literal["outcome", "events"] = "outcome",
        weight: float = 1.0,
        required: bool = False,
        scale: tuple[float, float] = (0, 1),
        name: str | None = None,
        environment: Names = None,
    ) -> Callable[[F], F]: ...
    def rubric(
        self,
        function: Any = None,
        *,
        of: Literal["outcome", "events"] = "outcome",
        weight: float = 1.0,
        required: bool = False,
        scale: tuple[float, float] = (0, 1),
        name: str | None = None,
        environment: Names = None,
        **unknown: Any,
    ) -> Any:
        """Declare a criterion that code scores. The function's docstring is the description of the criterion.

        Args:
            function: Scoring function. It returns a float, or None if the criterion does not apply.
            of: With "outcome", the function is called once per rollout and may have the parameters `trajectory`,
                `task`, `config` and `answer_text`. With "events", `fn(step, trajectory)` is called for each step.
            weight: Weight, at least 0. A criterion with weight 0 is reported but does not affect the reward.
            required: Whether the outcome is 0 when this criterion has the lowest score of its scale.
            scale: Lowest and highest score of an outcome criterion. Scores are normalized to
                (score − low)/(high − low). If the weight is above 0, a score outside the scale is an error.
            name: Name of the criterion. Defaults to the function's name.
            environment: Name of an environment, or several names. Defaults to all environments.
        """
        options = {"of": of, "weight": weight, "required": required, "scale": scale}
        return self._decorator("rubric", function, name, options, environment, unknown)

    @overload
    def judge(self, function: F, /) -> F: ...
    @overload
    def judge(
        self,
        *,
        weight: float = 1.0,
        scale: tuple[float, float] = (0, 1),
        samples: int = 1,
        group: bool = False,
        model: str | Sequence[str] = "judge",
        combine: Literal["mean", "median", "majority"] = "mean",
        choices: Sequence[str] = (),
        kind: Literal["chat", "reward_model"] = "chat",
        form: Literal["json_schema", "text"] = "json_schema",
        temperature: float | None = None,
        name: str | None = None,
        environment: Names = None,
    ) -> Callable[[F], F]: ...
    def judge(
        self,
        function: Any = None,
        *,
        weight: float = 1.0,
        scale: tuple[float, float] = (0, 1),
        samples: int = 1,
        group: bool = False,
        model: str | Sequence[str] = "judge",
        combine: Literal["mean", "median", "majority"] = "mean",
        choices: Sequence[str] = (),
        kind: Literal["chat", "reward_model"] = "chat",
        form: Literal["json_schema", "text"] = "json_schema",
        temperature: float | None = None,
        name: str | None = None,
        environment: Names = None,
        **unknown: Any,
    ) -> Any:
        """Declare a criterion that a model scores.

        The function's docstring is the question to the model. Its return value is the content that the model scores.

        Args:
            function: Function with the parameters of an outcome rubric. It returns a str, a dict with one section per
                key, a list of Text and Image, or None if the criterion does not apply.
            weight: Weight, at least 0. A judge with weight 0 is reported but does not affect the reward.
            scale: Lowest and highest score. Scores are normalized as for a rubric.
            samples: Number of requests to the model of each role.
            group: Whether the judge compares rollouts. The function then has the parameter `trajectories` and returns
                one string for each trajectory. Group judges are called only by `POST /score_group`, never for a
                single rollout.
            model: Role of the model to call, or several roles.
            combine: How the scores from several model calls are combined into one score.
            choices: Labels from which the model chooses instead of returning a number, from worst to best.
            kind: "reward_model" calls an endpoint that returns only a number. A str is sent as `input`, and a list of
                messages as `messages`. A dict is sent unchanged.
            form: Use "text" for endpoints that do not support structured output.
            temperature: Sampling temperature. If it is None, the endpoint's default applies.
            name: Name of the judge. Defaults to the function's name.
            environment: Name of an environment, or several names. Defaults to all environments.
        """
        options = {
            "weight": weight,
            "scale": scale,
            "samples": samples,
            "group": group,
            "model": model,
            "combine": combine,
            "choices": choices,
            "kind": kind,
            "form": form,
            "temperature": temperature,
        }
        return self._decorator("judge", function, name, options, environment, unknown)

    def load_rubric(self, path: str | Path, *, environment: Names = None) -> None:
        """Declare the criteria in a TOML, YAML or JSON file.

        If a criterion has the name of an `@app.rubric`, the file sets the weight, the description and `required` of
        that rubric. A judge scores all other criteria.

        Args:
            path: Path of the file, relative to the author's file.
            environment: Name of an environment, or several names. Defaults to all environments.
        """
        place = calling_line(1)
        self._declare(Declaration("rubric_file", str(path), self.path(path), {}, place, environment))

    # -- policies and numbers -------------------------------------------------------------------------------------

    @overload
    def policy(self, name: F, /) -> F: ...
    @overload
    def policy(self, name: str | None = None, *, environment: Names = None) -> Callable[[F], F]: ...
    def policy(self, name: Any = None, *, environment: Names = None, **unknown: Any) -> Any:
        """Declare a scripted policy, `fn(observation, rng)`, which returns `{"tool": {args}}` or text.

        The policy named "gold" demonstrates good play, and its function may also have the parameter `task`. A declared
        policy replaces a built-in policy with the same name.

        Args:
            name: Name of the policy. Defaults to the function's name.
            environment: Name of an environment, or several names. Defaults to all environments.
        """
        if callable(name):
            return self._decorator("policy", name, None, {}, environment, unknown)
        return self._decorator("policy", None, name, {}, environment, unknown)

    @overload
    def metric(self, function: F, /) -> F: ...
    @overload
    def metric(self, *, name: str | None = None, environment: Names = None) -> Callable[[F], F]: ...
    def metric(
        self, function: Any = None, *, name: str | None = None, environment: Names = None, **unknown: Any
    ) -> Any:
        """Declare a number (or a dict of numbers) about one rollout.

        Args:
            function: Function with the parameters of an outcome rubric.
            name: Name of the metric. Defaults to the function's name.
            environment: Name of an environment, or several names. Defaults to all environments.
        """
        return self._decorator("metric", function, name, {}, environment, unknown)

    @overload
    def aggregate(self, function: F, /) -> F: ...
    @overload
    def aggregate(
        self,
        *,
        published: Mapping[str, Mapping[str, float]] = ...,
        name: str | None = None,
        environment: Names = None,
    ) -> Callable[[F], F]: ...
    def aggregate(
        self,
        function: Any = None,
        *,
        published: Mapping[str, Mapping[str, float]] | None = None,
        name: str | None = None,
        environment: Names = None,
        **unknown: Any,
    ) -> Any:
        """Declare a number (or a dict of numbers) about many rollouts.

        Args:
            function: `fn(rollouts: Sequence[RolloutSummary])`.
            published: Published figures that `taskapp eval` prints next to the result, such as
                `{"a paper": {"score": 1.5}}`. Each key is a column heading. The inner keys are the keys of the dict
                that the function returns.
            name: Name of the aggregate. Defaults to the function's name.
            environment: Name of an environment, or several names. Defaults to all environments.
        """
        return self._decorator("aggregate", function, name, {"published": published or {}}, environment, unknown)

    @overload
    def rollout(self, function: F, /) -> F: ...
    @overload
    def rollout(self) -> Callable[[F], F]: ...
    def rollout(self, function: Any = None, **unknown: Any) -> Any:
        """Declare an agent loop, `async def play(env, model, task)`, which replaces the kit's loop for models.

        Args:
            function: Async function with any of the parameters `env`, `model` and `task`. `env` has `observation`,
                `tools`, `done` and `await step(tool, args)`; `model` has `await chat(messages, tools)`; `task` is a
                dict of the row's public fields.
        """
        return self._decorator("rollout", function, None, {}, None, unknown)

    # -- using the app --------------------------------------------------------------------------------------------

    def freeze(self) -> AppSpec:
        """Check every declaration once and return the frozen spec.

        Raises:
            DeclarationError: A declaration is invalid. The error lists every problem.
        """
        # The lock is needed, because several worker threads may call freeze() at the same time.
        with self._lock:
            if self._spec is None:
                from taskapp_kit.declare.freeze import freeze

                self._spec = freeze(self)
            return self._spec

    @property
    def frozen(self) -> bool:
        """Whether the app has been frozen. A frozen app accepts no more declarations."""
        return self._spec is not None

    def asgi(self, exposure: Exposure = "public") -> FastAPI:
        """Return the FastAPI app, for `uvicorn adder:app.asgi --factory`. Settings come from the process environment.

        Args:
            exposure: "local" enables the OpenAPI pages and allows model addresses on the loopback interface. Use it
                only for a server that listens on the loopback interface.

        Raises:
            DeclarationError: A declaration is invalid.
            ConfigError: A setting is invalid.
        """
        from taskapp_kit.asgi import build

        return build(self, exposure=exposure)

    def as_service(self, name: str | None = None, /, *, procs: int = 1, **options: Any) -> ServiceHandle:
        """Start several replicas of a service that plays an environment with `reset`, `step` and `finish`.

        Args:
            name: Name of the environment. Defaults to the first environment declared.
            procs: Number of processes per replica.
            options: Options of the service, such as `num_replicas`; see docs/train/services.md.

        Returns:
            A handle of the running service.

        Raises:
            DeclarationError: A declaration is invalid.
            RequestError: The app has no environment with this name.
            BadArgument: An option is invalid.
            DiscoveryError: Another process cannot import this app.
        """
        from taskapp_kit.services.environment_service import EnvironmentActor

        return EnvironmentActor.options(procs=procs, **options).as_service(self, name)


def _tags(tags: Sequence[str]) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)
