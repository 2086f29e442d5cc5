"""Tests of __app_title__: the desk alone, then played and scored, with local model servers."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from __app_name__ import SECOND_LOOK, Customer, Desk, Ticket, app
from __app_name___shop import KINDS, facts, stock, tables, ticket

from taskapp_kit import InvalidAction, RequestError, RolloutFailed
from taskapp_kit.testing import ChatRequest, Faults, MockModel, play

SEEDS = range(60)


@pytest.fixture
def user_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockModel]:
    """Start the simulated user. With `models=True`, `play` reads the variables, like a server."""
    with MockModel(["Hi, I have a wish.", "Right, that is what I meant.", "Many thanks. GOODBYE!"]) as model:
        monkeypatch.setenv("TASKAPP_USER_URL", model.url)
        monkeypatch.setenv("TASKAPP_USER_MODEL", "m")
        yield model


def seed_of(kind: str) -> int:
    return next(seed for seed in range(1000) if ticket(seed)["kind"] == kind)


def desk_of(seed: int) -> tuple[Desk, Ticket]:
    desk, task = Desk(), Ticket.model_validate(ticket(seed))
    desk.open(task)
    return desk, task


# The decorators do not change the class, so its rules can be tested directly, without a server.


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


# Played and scored, and over HTTP.


def test_a_key_is_required(taskapp_served) -> None:
    address = f"{taskapp_served.url}/task_info"
    assert httpx.get(address, headers={"X-API-Key": "another"}).status_code == 401


def test_the_same_seed_is_the_same_episode() -> None:
    assert play(app, seed=3).digest == play(app, seed=3).digest
    assert play(app, seed=3, policy="gold").digest != play(app, seed=4, policy="gold").digest
    assert play(app, seed=3, policy="gold", split="test").digest != play(app, seed=3, policy="gold").digest


def test_good_service_pays_and_idling_does_not() -> None:
    for seed in SEEDS:
        rollout = play(app, seed=seed, policy="gold")
        assert rollout.reward == 1.0, (seed, ticket(seed)["kind"])
        assert rollout.trajectory.status == "terminated"
    for seed in map(seed_of, KINDS):
        idle = play(app, seed=seed, policy="noop")
        assert (idle.reward, idle.trajectory.stop_reason) == (0.0, "max_steps")
        assert play(app, seed=seed, action="It is all done. Thank you!").reward == 0.0
    assert sum(play(app, seed=seed).reward for seed in SEEDS) / len(SEEDS) <= 0.02


def test_what_was_not_asked_for_costs_everything() -> None:
    seed = seed_of("refund_late")
    (wish,) = ticket(seed)["wishes"]
    order = wish.call["add_note"]["order_id"]
    item = stock(seed).item(order)[0]
    find = {"type": "env", "tool": "find_customer", "args": {"email": ticket(seed)["email"]}}
    note = {"type": "env", "tool": "add_note", "args": wish.call["add_note"]}
    refund = {"type": "env", "tool": "refund", "args": {"item_id": item}}
    talk = {"type": "env", "tool": "reply", "args": {"words": "Thank you, it is done."}}

    def reward(*ops: dict[str, Any]) -> Any:
        return play(app, seed=seed, policy="noop", ops=ops).reward

    assert reward(find, note, talk) == 1.0
    assert reward(find, note, note, talk) == 1.0  # a repeated note is still a single fact
    assert reward(find, refund, note, talk) == 0.0
    assert reward(find, refund, talk) == 0.0


def test_impatience_ends_it_and_config_is_checked() -> None:
    trajectory = play(app, seed=5, action="Is that so?", config={"patience": 3}).trajectory
    assert (trajectory.status, trajectory.length) == ("terminated", 3)
    with pytest.raises(RequestError):
        play(app, seed=5, policy="gold", config={"patience": 0})


def test_what_the_customer_wants_is_private(taskapp_served) -> None:
    address = f"{taskapp_served.url}/task_info?seed=5"
    shown = httpx.get(address, headers={"X-API-Key": taskapp_served.key}).text
    assert ticket(5)["email"] not in shown
    assert ticket(5)["wishes"][0].words not in shown


# With models: a simulated user, and a model that plays in `@app.rollout`.


def test_a_model_plays_the_customer_where_there_is_one(user_model: MockModel) -> None:
    rollout = play(app, seed=seed_of("cancel"), policy="gold", models=True)
    assert rollout.reward == 1.0
    assert rollout.trajectory.metrics["calls_user"] == 3
    assert rollout.scorecard.metrics["scripted_customer"] == 0
    assert "Hi, I have a wish." in str(rollout.trajectory.initial)
    sent = user_model.requests[-1].body["messages"]
    assert ticket(seed_of("cancel"))["wishes"][0].words in sent[0]["content"]
    assert [message["role"] for message in sent[1:]] == ["user", "assistant", "user", "assistant", "user"]


def test_a_customer_who_breaks_down_is_a_failure_and_no_zero(user_model: MockModel) -> None:
    user_model.faults = Faults(rate={"400": 1.0})
    with pytest.raises(RolloutFailed) as failed:
        play(app, seed=3, policy="gold", models=True)
    assert failed.value.failure.boundary == "environment"


def test_without_a_model_the_customer_is_the_script() -> None:
    rollout = play(app, seed=3, policy="gold")
    assert rollout.scorecard.metrics["scripted_customer"] == 1
    assert "calls_user" not in rollout.trajectory.metrics


def clerk(seed: int) -> Any:
    """Return a model that plays like gold, but sends each change twice, because the first call is held back."""
    (wish,) = ticket(seed)["wishes"]
    script = [{"find_customer": {"email": ticket(seed)["email"]}}, wish.call, wish.call]

    def answer(request: ChatRequest) -> Any:
        return script[request.turn] if request.turn < len(script) else "It is done. Thank you!"

    return answer


def test_a_model_that_acts_is_asked_for_a_second_look() -> None:
    seed = seed_of("cancel")
    with MockModel(clerk(seed)) as model:
        rollout = play(app, seed=seed, policy=model)
    assert rollout.reward == 1.0
    assert rollout.trajectory.length == 3  # find, cancel, reply; the call that was held back is not a step
    seen = [request.body["messages"] for request in model.requests]
    assert len(seen) == 4
    assert seen[2][-1]["content"] == SECOND_LOOK
    assert seen[3][-1]["content"].startswith("Entry 1: order")
    assert all(after[: len(before)] == before for before, after in pairwise(seen))
    assert json.loads(seen[1][-1]["content"])["customers"]


def test_both_models_in_one_rollout(user_model: MockModel) -> None:
    seed = seed_of("not_theirs")
    with MockModel(clerk(seed)) as model:
        rollout = play(app, seed=seed, policy=model, models=True)
    assert rollout.reward == 1.0
    assert (rollout.trajectory.metrics["calls_user"], rollout.scorecard.metrics["scripted_customer"]) == (3, 0)
    assert len(model.requests) == 5  # find, two notes (not held back, because notes change nothing), two replies
    assert model.requests[-1].body["messages"][-1]["content"] == "Customer: Right, that is what I meant."
    assert len(user_model.requests) == 3


def test_a_model_that_acts_badly_reads_why() -> None:
    broken = {"content": None, "tool_calls": [{"name": "get_order", "arguments": '{"order_id": '}]}
    with MockModel([broken, {"fly": {"to": "Rome"}}, "", "Thank you."]) as model:
        rollout = play(app, seed=seed_of("cancel"), policy=model)
    assert rollout.trajectory.status == "terminated"
    assert rollout.reward == 0.0
    assert rollout.trajectory.metrics["invalid_actions"] == 3
