"""`TaskApp`: the object on which an author declares. It only collects; `freeze()` checks everything at once."""

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
    """A task app: environments, actions, rubrics, judges and policies, declared by decorators that change nothing.

    Args:
        name: also the service's name on the wire.
        version: of the app; stored with each rollout.
        description: shown to callers; the docstring of the author's module when empty.
        reward: the blend of return, events score and outcome score; by default fixed at freeze (docs/environments/writing.md).
        system_prompt: the model's first message; built from the declarations when absent.
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
        # The author's file: relative paths start there, and its docstring describes the app.
        frame = sys._getframe(1)
        self.file = Path(frame.f_code.co_filename)
        self.docstring = frame.f_globals.get("__doc__") or ""
        self.place = calling_line(1)
        self.reference: str | None = None
        """The reference by which `declare.discovery.find_app` found it, for other processes; None if imported otherwise."""
        self.declared = []
        self._spec: AppSpec | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"TaskApp({self.name!r}, version={self.version!r})"

    def path(self, name: str | Path) -> Path:
        """Return a file beside the author's file; a deploy uploads every file named this way.

        Args:
            name: the file's path, relative to the author's file.
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
        """Declare the class under `name`; the first declared is the default. Returns the class unchanged.

        Args:
            name: the class's own in small letters (`WordGame`: `word_game`) when absent.
            splits: name to a range of seeds, disjoint.
            tasks: instead of splits, name to rows (a list, a JSONL path, a callable), which the seed indexes.
            row: the type of the rows.
            prompt: the system prompt of this environment.
            max_steps: the limit on steps, or the name of the constructor's parameter that gives it.
            max_turns: the limit on the policy's turns; None is no limit. Without it and max_steps it is 1000.
            max_refusals: the limit on the policy's answers in a row in which nothing was accepted; None is no limit.
            step_timeout_seconds: how long one call of the environment may take.
            isolation: whether it runs in a thread of the server or in a process of its own.
            models: the roles of the models that it calls with `context.model(role)`.
            reward_range: the lowest and highest reward of a step.
            baselines: policy to its highest acceptable mean reward.
            accept: checks of `taskapp doctor` whose findings are meant, each with the reason, which every report shows.
            version: of the environment; stored with each rollout.
            tags: words for lists of environments.
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
            named = name if name is not None else _small(getattr(cls, "__name__", "environment"))
            self._declare(Declaration("environment", named, cls, options, place, unknown=tuple(unknown)))
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
        """Declare a one-answer environment: shows a row's prompt, and the policy's answer ends the episode.

        An answer without text is scored as the empty text.

        Args:
            name: of the environment.
            row: the type of the rows.
            prompt: a format string over the row's public fields, or `fn(row) -> str`; needed.
            rows: one source for all splits, each of which is then a range of its row numbers, from 0: `rows="q.jsonl",
                train=range(40), test=range(40, 50)`; a seed counts within its split.
            splits: splits in a mapping, for names that are options here.
            max_turns: with more than one, the policy may retry after a refused answer; the first accepted answer ends
                the episode.
            models: the roles of the models that it calls.
            accept: checks of `taskapp doctor` whose findings are meant, each with the reason.
            version: of the environment; stored with each rollout.
            tags: words for lists of environments.
            further: each is a split: a list of rows, a JSONL path beside the author's file, or a callable.
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
        """Declare one criterion; the docstring is its description.

        Args:
            function: returns a float, or None for *not applicable*.
            of: "outcome" is called once for each rollout and takes by name any of trajectory, task, config,
                answer_text; "events" is `fn(step, trajectory)`, called for each step.
            weight: 0 or more; 0 only measures.
            required: a score at the bottom of the scale makes the whole outcome 0.
            scale: lowest and highest score of an outcome criterion. It enters the outcome as (score − low)/(high −
                low); with weight > 0 a score outside is an error, not a number.
            name: the function's own when absent.
            environment: one name or several; all when absent.
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
        """Declare a criterion that a model scores: the docstring is the question, the return value what the model reads.

        Args:
            function: takes what an outcome rubric takes; returns a str, a dict (one part for each name), a list of Text
                and Image, or None for *not applicable*.
            weight: 0 or more; 0 only measures.
            scale: lowest and highest score, as a rubric's.
            samples: requests to each model.
            group: takes `trajectories` and returns a list, one text for each; used at `POST /score_group`, never for
                one rollout.
            model: the role whose model is called, or several roles.
            combine: how several scores become one.
            choices: words from worst to best, in place of a number.
            kind: with "reward_model" the endpoint answers with a number alone; a str is sent as `input`, a list of
                messages as `messages`, a dict as it is.
            form: "text" is for endpoints without structured output.
            temperature: sent when given.
            name: the function's own when absent.
            environment: one name or several; all when absent.
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
        """Declare the criteria of a TOML, YAML or JSON file beside the author's file.

        A criterion whose id is the name of a declared `@app.rubric` takes its weight, description and `required` from
        the file; any other one is asked of a judge.

        Args:
            path: relative to the author's file.
            environment: one name or several; all when absent.
        """
        place = calling_line(1)
        self._declare(Declaration("rubric_file", str(path), self.path(path), {}, place, environment))

    # -- policies and numbers -------------------------------------------------------------------------------------

    @overload
    def policy(self, name: F, /) -> F: ...
    @overload
    def policy(self, name: str | None = None, *, environment: Names = None) -> Callable[[F], F]: ...
    def policy(self, name: Any = None, *, environment: Names = None, **unknown: Any) -> Any:
        """Declare a policy of the app's own: `fn(observation, rng) -> {"tool": {args}}` or text.

        "gold" is the example of good play and may also take `task`. An app's policy wins over a built-in of its name.

        Args:
            name: the function's own when absent.
            environment: one name or several; all when absent.
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
            function: takes the same names as an outcome rubric.
            name: the function's own when absent.
            environment: one name or several; all when absent.
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
        """Declare a number (or a dict) over many rollouts.

        Args:
            function: `fn(rollouts: Sequence[RolloutSummary])`.
            published: figures by others that `taskapp eval` shows beside it: heading of the column to name to number,
                the names those of the dict that the function returns.
            name: the function's own when absent.
            environment: one name or several; all when absent.
        """
        return self._decorator("aggregate", function, name, {"published": published or {}}, environment, unknown)

    @overload
    def rollout(self, function: F, /) -> F: ...
    @overload
    def rollout(self) -> Callable[[F], F]: ...
    def rollout(self, function: Any = None, **unknown: Any) -> Any:
        """Declare the author's own agent loop, `async def play(env, model, task)`: it runs where a model is to act.

        Args:
            function: takes by name any of env (`observation`, `tools`, `done`, `await step(tool, args)`), model (`await
                chat(messages, tools)`) and task (the row's public fields, a dict).
        """
        return self._decorator("rollout", function, None, {}, None, unknown)

    # -- using the app --------------------------------------------------------------------------------------------

    def freeze(self) -> AppSpec:
        """Check every declaration once and returns the frozen spec.

        Raises:
            DeclarationError: the declarations have mistakes; it holds all of them.
        """
        # The first request of each worker thread may come at the same moment.
        with self._lock:
            if self._spec is None:
                from taskapp_kit.declare.freeze import freeze

                self._spec = freeze(self)
            return self._spec

    @property
    def frozen(self) -> bool:
        """True once the app serves; from then on nothing can be declared."""
        return self._spec is not None

    def asgi(self, exposure: Exposure = "public") -> FastAPI:
        """Return the FastAPI app: `uvicorn adder:app.asgi --factory`. Settings come from the process environment.

        Args:
            exposure: "local" enables the docs and allows loopback model addresses: for a server bound to loopback only.

        Raises:
            DeclarationError: the declarations have mistakes.
            ConfigError: a setting cannot be used.
        """
        from taskapp_kit.asgi import build

        return build(self, exposure=exposure)

    def as_service(self, name: str | None = None, /, *, procs: int = 1, **options: Any) -> ServiceHandle:
        """Return an environment as a service: `reset`, `step`, `finish` in sessions, on several replicas.

        Args:
            name: of the environment; the first declared when absent.
            procs: processes of each replica.
            options: of the service, `num_replicas` and others (docs/train/services.md).

        Raises:
            DeclarationError: the declarations have mistakes.
            RequestError: there is no such environment.
            BadArgument: an option cannot be used.
            DiscoveryError: another process cannot find this app.
        """
        from taskapp_kit.services.environment_service import EnvironmentActor  # the other one

        return EnvironmentActor.options(procs=procs, **options).as_service(self, name)


def _small(name: str) -> str:
    """Convert `WordGame` to `word_game`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _tags(tags: Sequence[str]) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)
