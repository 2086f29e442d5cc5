"""`/task_info` returns the task set, or a TaskInfo for each requested seed."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from starlette.requests import Request

from taskapp_kit.declare.episode_selection import Instance
from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.net.response import EncodedResponse, json_answer
from taskapp_kit.records.seeds import SEED_LIMIT
from taskapp_kit.serve.openapi_models import TaskInfo, Taskset
from taskapp_kit.serve.route import RouteContext, RouteSpec, invalid_field
from taskapp_kit.wire.rollout import ENVIRONMENT, SPLIT

MAX_SEEDS = 1000
MAX_QUERY_FIELDS = 2 * MAX_SEEDS
INTEGER = re.compile(r"-?[0-9]+", re.ASCII)


async def task_info(context: RouteContext, request: Request) -> EncodedResponse:
    """Return `{"taskset": …}` if no seed is requested, a TaskInfo for one seed, or a list of TaskInfo for several seeds.

    The seeds in `seed` precede the seeds in `seeds`. `environment` or `env_name` selects an environment, by default the
    first. `split` selects the split if the environment has rows.
    """
    query = _query(request)
    environment = _environment(context, _one(query, "environment", "env_name"))
    seeds = [
        _seed(name, text, context.description.ranges(environment))
        for name in ("seed", "seeds")
        for text in query.get(name, [])
    ]
    if len(seeds) > MAX_SEEDS:
        raise _wrong("seeds", f"has {len(seeds)} seeds, but the maximum is {MAX_SEEDS}", "too_many")
    split = _one(query, "split")
    if not seeds:
        if split is not None and split not in environment.split_names:
            raise _wrong(
                "split", f"is unknown. {environment.name} has {', '.join(environment.split_names)}", "unknown_split"
            )
        return json_answer(context.description.taskset(environment))
    found = []
    for seed in seeds:
        instance = _instance(context, environment, split, seed)
        found.append(context.description.task(instance.environment, instance.split, instance.seed, instance.task))
    return json_answer(found[0] if len(found) == 1 else found)


def _query(request: Request) -> dict[str, list[str]]:
    try:
        # Starlette's parser does not limit the number of parameters
        pairs = parse_qsl(
            request.scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS
        )
    except ValueError:
        raise _wrong("seeds", f"was sent more than {MAX_QUERY_FIELDS} times", "too_many") from None
    found: dict[str, list[str]] = {}
    for name, text in pairs:
        found.setdefault(name, []).append(text)
    return found


def _one(query: dict[str, list[str]], *names: str) -> str | None:
    given = [(name, text) for name in names for text in query.get(name, [])]
    # clients may send both names with the same value
    if len({text for _, text in given}) > 1:
        raise _wrong(given[1][0], "was sent more than once with different values", "ambiguous")
    return given[0][1] if given else None


def _environment(context: RouteContext, name: str | None) -> EnvironmentSpec:
    spec = context.service.spec
    if name is None:
        return spec.default_environment
    if name not in spec.environments:
        raise _wrong("environment", f"is unknown. This app has {', '.join(spec.environments)}", "unknown_environment")
    return spec.environments[name]


def _instance(context: RouteContext, environment: EnvironmentSpec, split: str | None, seed: int) -> Instance:
    try:
        return context.service.instance(environment.name, split, seed)
    except RequestError as error:  # its fields refer to the body of a rollout, not to query parameters
        fields = tuple(
            FieldProblem(("query", problem.loc[-1]), problem.message, problem.type) for problem in error.fields
        )
        raise RequestError(error.message, fields=fields, code=error.code, hint=error.hint) from None


def _seed(name: str, text: str, ranges: str) -> int:
    """Return the seed. Raises RequestError if it is not a valid seed in any app. `Service.instance` checks this app's splits."""
    if not INTEGER.fullmatch(text):
        raise _wrong(name, f"is not an integer. The seeds are {ranges}", "int_parsing")
    if len(text) > 20 or int(text) >= SEED_LIMIT or text.startswith("-"):
        shown = text if len(text) <= 40 else f"{text[:20]}… ({len(text)} digits)"
        raise _wrong(name, f"is {shown}, which is not in a split. The seeds are {ranges}", "out_of_range")
    return int(text)


def _wrong(name: str, found: str, kind: str) -> RequestError:
    hint = "For the splits and their seeds, send GET /task_info without parameters."
    return invalid_field(("query", name), found, code="invalid_query", kind=kind, hint=hint)


SEEDS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": SEED_LIMIT - 1}, "maxItems": MAX_SEEDS}
ROUTE = RouteSpec(
    "/task_info",
    "GET",
    task_info,
    "Describe the tasks",
    response_model=Taskset | TaskInfo | list[TaskInfo],
    failures=(422,),
    parameters=(
        {"name": "seed", "in": "query", "required": False, "schema": SEEDS},
        {"name": "seeds", "in": "query", "required": False, "schema": SEEDS},
        {"name": "split", "in": "query", "required": False, "schema": SPLIT},
        {"name": "environment", "in": "query", "required": False, "schema": ENVIRONMENT},
        {"name": "env_name", "in": "query", "required": False, "schema": ENVIRONMENT},
    ),
)
