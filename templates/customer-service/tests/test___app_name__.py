"""__app_title__: the desk by itself, then over HTTP, as a trainer calls it; the models are local servers."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from __app_name__ import SECOND_LOOK, Customer, Desk, Ticket, app
from __app_name___shop import KINDS, facts, stock, tables, ticket
from fastapi.testclient import TestClient

from taskapp_kit import InvalidAction
from taskapp_kit.testing import ChatRequest, Faults, MockModel

KEY = "a-key-for-these-tests"
SEEDS = range(60)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)
    monkeypatch.setenv("TASKAPP_STORE", "none")
    with TestClient(app.asgi(exposure="local"), headers={"X-API-Key": KEY}) as client:  # local: models on this machine
        yield client


@pytest.fixture
def user_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockModel]:
    """The simulated user. Name it before `client`, for the server reads the variable when it is made."""
    with MockModel(["Hi, I have a wish.", "Right, that is what I meant.", "Many thanks. GOODBYE!"]) as model:
        monkeypatch.setenv("TASKAPP_USER_URL", model.url)
        monkeypatch.setenv("TASKAPP_USER_MODEL", "m")
        yield model


def ask(client: TestClient, seed: int, policy: dict[str, Any], **config: Any) -> Any:
    env = {"seed": seed, "config": config}
    return client.post("/rollout", json={"run_id": "test", "mode": "eval", "env": env, "policy": policy, "ops": []})


def rollout(client: TestClient, seed: int, policy: str, action: Any = None, **config: Any) -> dict[str, Any]:
    policy_config = {} if action is None else {"action": action}
    answer = ask(client, seed, {"policy_name": policy, "config": policy_config}, **config)
    assert answer.status_code == 200, answer.text
    return answer.json()


def with_model(client: TestClient, seed: int, model: MockModel) -> dict[str, Any]:
    answer = ask(client, seed, {"config": {"inference_url": model.url, "model": "m"}})
    assert answer.status_code == 200, answer.text
    return answer.json()


def seed_of(kind: str) -> int:
    return next(seed for seed in range(1000) if ticket(seed)["kind"] == kind)


def desk_of(seed: int) -> tuple[Desk, Ticket]:
    desk, task = Desk(), Ticket.model_validate(ticket(seed))
    desk.open(task)
    return desk, task


# The decorators change nothing: the class works without a server, so its rules are tested directly.


def test_the_number_is_the_whole_shop_and_each_kind_of_wish_comes_up() -> None:
    assert stock(7) == stock(7)
    assert stock(7) != stock(8)
    assert {ticket(number)["kind"] for number in range(100)} == set(KINDS)


def test_a_clerk_finds_a_customer_before_anything_else() -> None:
    desk, task = desk_of(3)
    with pytest.raises(InvalidAction, match="Find the customer"):
        desk.get_order(order_id=1001)
    with pytest.raises(InvalidAction, match="not found by e-mail"):
        desk.list_orders(customer_id=1)
    assert desk.find_customer(email="nobody@example.org") == {"customers": []}
    (customer,) = desk.find_customer(email=f" {task.email.upper()} ")["customers"]
    assert customer["name"] == task.name
    assert len(desk.list_orders(customer_id=customer["id"])["orders"]) == 4


def test_what_the_tools_refuse_changes_nothing() -> None:
    desk, task = desk_of(3)
    desk.find_customer(email=task.email)
    rows = stock(3)
    sent, fresh = rows.order(1, "sent"), rows.order(1, "new")
    desk.refund(item_id=rows.item(fresh)[0])
    before = facts(tables(desk.database))
    with pytest.raises(InvalidAction, match="is sent, not open"):
        desk.cancel_order(order_id=sent)
    with pytest.raises(InvalidAction, match="is delivered, not open"):
        desk.change_address(order_id=fresh, address="5 Elm Avenue, Dover")
    with pytest.raises(InvalidAction, match="not delivered"):
        desk.refund(item_id=rows.item(sent)[0])
    with pytest.raises(InvalidAction, match="refunded already"):
        desk.refund(item_id=rows.item(fresh)[0])
    with pytest.raises(InvalidAction, match="no item 99"):
        desk.refund(item_id=99)
    with pytest.raises(InvalidAction, match="no order 1099"):
        desk.add_note(order_id=1099, topic="other", text="What is this?")
    with pytest.raises(InvalidAction, match="Say something"):
        desk.reply(words="  ")
    assert facts(tables(desk.database)) == before
    assert [item["refunded"] for item in desk.get_order(order_id=fresh)["items"]].count(1) == 1


def test_the_scripted_customer_answers_questions_and_goes_when_all_is_told() -> None:
    task = Ticket.model_validate(ticket(seed_of("two_wishes")))
    customer = Customer(task, None)
    first, second = (wish.words for wish in task.wishes)
    told = customer.scripted("What is your e-mail?")
    assert task.email in told
    assert first in told
    assert customer.scripted("That is done.") == f"Thank you. There is one more thing. {second}"
    assert customer.scripted("That too. Anything else?") == "Thank you, goodbye."


# Over HTTP.


def test_a_key_is_required(client: TestClient) -> None:
    client.headers["X-API-Key"] = "another"
    assert ask(client, 0, {"policy_name": "gold", "config": {}}).status_code == 401


def test_the_same_seed_is_the_same_episode(client: TestClient) -> None:
    assert rollout(client, 3, "random")["digest"] == rollout(client, 3, "random")["digest"]
    assert rollout(client, 3, "gold")["digest"] != rollout(client, 4, "gold")["digest"]
    test = rollout(client, 3, "gold", split="test")
    assert test["digest"] != rollout(client, 3, "gold")["digest"]


def test_good_service_pays_and_idling_does_not(client: TestClient) -> None:
    for seed in SEEDS:
        answer = rollout(client, seed, "gold")
        assert answer["reward"] == 1.0, (seed, ticket(seed)["kind"])
        assert answer["status"] == "terminated"
    for seed in map(seed_of, KINDS):
        idle = rollout(client, seed, "noop")
        assert (idle["reward"], idle["stop_reason"]) == (0.0, "max_steps")
        assert rollout(client, seed, "constant", action="It is all done. Thank you!")["reward"] == 0.0
    assert sum(rollout(client, seed, "random")["reward"] for seed in SEEDS) / len(SEEDS) <= 0.02


def test_what_was_not_asked_for_costs_everything(client: TestClient) -> None:
    seed = seed_of("refund_late")
    (wish,) = ticket(seed)["wishes"]
    order = wish.call["add_note"]["order_id"]
    item = stock(seed).item(order)[0]
    find = {"type": "env", "tool": "find_customer", "args": {"email": ticket(seed)["email"]}}
    note = {"type": "env", "tool": "add_note", "args": wish.call["add_note"]}
    refund = {"type": "env", "tool": "refund", "args": {"item_id": item}}
    talk = {"type": "env", "tool": "reply", "args": {"words": "Thank you, it is done."}}

    def reward(*ops: dict[str, Any]) -> Any:
        body = {"run_id": "test", "mode": "eval", "env": {"seed": seed}, "policy": {"policy_name": "noop"}}
        return client.post("/rollout", json={**body, "ops": ops}).json()["reward"]

    assert reward(find, note, talk) == 1.0
    assert reward(find, note, note, talk) == 1.0  # said twice, it is still one fact
    assert reward(find, refund, note, talk) == 0.0
    assert reward(find, refund, talk) == 0.0


def test_impatience_ends_it_and_config_is_checked(client: TestClient) -> None:
    answer = rollout(client, 5, "constant", action="Is that so?", patience=3)
    assert (answer["status"], answer["metrics"]["num_steps"]) == ("terminated", 3)
    assert ask(client, 5, {"policy_name": "gold", "config": {}}, patience=0).status_code == 422


def test_what_the_customer_wants_is_private(client: TestClient) -> None:
    told = client.get("/task_info", params={"seed": 5}).text
    assert ticket(5)["email"] not in told
    assert ticket(5)["wishes"][0].words not in told


# With models: a simulated user, and one that plays by `@app.rollout`.


def test_a_model_plays_the_customer_where_there_is_one(user_model: MockModel, client: TestClient) -> None:
    answer = rollout(client, seed_of("cancel"), "gold")
    assert answer["reward"] == 1.0
    assert answer["metrics"]["details"]["calls_user"] == 3
    assert answer["metrics"]["details"]["scripted_customer"] == 0
    assert "Hi, I have a wish." in str(answer["trajectories"][0]["trace"]["initial_observation"])
    told = user_model.requests[-1].body["messages"]
    assert ticket(seed_of("cancel"))["wishes"][0].words in told[0]["content"]
    assert [message["role"] for message in told[1:]] == ["user", "assistant", "user", "assistant", "user"]


def test_a_customer_who_breaks_down_is_a_failure_and_no_zero(user_model: MockModel, client: TestClient) -> None:
    user_model.faults = Faults(rate={"400": 1.0})
    answer = ask(client, 3, {"policy_name": "gold", "config": {}})
    assert answer.status_code == 500
    assert answer.json()["detail"]["error"]["boundary"] == "environment"
    assert "reward" not in answer.json()


def test_without_a_model_the_customer_is_the_script(client: TestClient) -> None:
    answer = rollout(client, 3, "gold")
    assert answer["metrics"]["details"]["scripted_customer"] == 1
    assert "calls_user" not in answer["metrics"]["details"]


def clerk(seed: int) -> Any:
    """A model that does what gold does, each change twice, for the first time it is held back."""
    (wish,) = ticket(seed)["wishes"]
    script = [{"find_customer": {"email": ticket(seed)["email"]}}, wish.call, wish.call]

    def answer(request: ChatRequest) -> Any:
        return script[request.turn] if request.turn < len(script) else "It is done. Thank you!"

    return answer


def test_a_model_that_acts_is_asked_for_a_second_look(client: TestClient) -> None:
    seed = seed_of("cancel")
    with MockModel(clerk(seed)) as model:
        answer = with_model(client, seed, model)
    assert answer["reward"] == 1.0
    assert answer["metrics"]["num_steps"] == 3  # find, cancel, reply: what was held back was no step
    seen = [request.body["messages"] for request in model.requests]
    assert len(seen) == 4
    assert seen[2][-1]["content"] == SECOND_LOOK
    assert seen[3][-1]["content"].startswith("Entry 1: order")
    assert all(after[: len(before)] == before for before, after in pairwise(seen))
    assert json.loads(seen[1][-1]["content"])["customers"]


def test_both_models_in_one_rollout(user_model: MockModel, client: TestClient) -> None:
    seed = seed_of("not_theirs")
    with MockModel(clerk(seed)) as model:
        answer = with_model(client, seed, model)
    details = answer["metrics"]["details"]
    assert answer["reward"] == 1.0
    assert (details["calls_user"], details["scripted_customer"]) == (3, 0)
    assert len(model.requests) == 5  # find, the note twice (it is no change, so it is never held back), two replies
    assert model.requests[-1].body["messages"][-1]["content"] == "Customer: Right, that is what I meant."
    assert len(user_model.requests) == 3


def test_a_model_that_acts_badly_is_told_why(client: TestClient) -> None:
    broken = {"content": None, "tool_calls": [{"name": "get_order", "arguments": '{"order_id": '}]}
    with MockModel([broken, {"fly": {"to": "Rome"}}, "", "Thank you."]) as model:
        answer = with_model(client, seed_of("cancel"), model)
    assert answer["status"] == "terminated"
    assert answer["reward"] == 0.0
    assert answer["metrics"]["details"]["invalid_actions"] == 3
