"""__app_title__: customer service of a small shop, with a database, rules to keep and a customer to talk to."""

import inspect
import json
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from __app_name___shop import TODAY, Wish, an_address, an_email, facts, open_shop, tables, ticket
from pydantic import BaseModel, Field

from taskapp_kit import InvalidAction, Private, Step, TaskApp, Trajectory, Unavailable, action

app = TaskApp("__app_name__", version="0.1.0", description="Serve the customers of a small shop by its rules.")


class Ticket(BaseModel):
    """A row. Only the shop's number is public. The environment, the rubrics and `gold` read what the customer wants."""

    shop: int
    kind: Private[str]
    name: Private[str]
    email: Private[str]
    wishes: Private[list[Wish]]


def tickets(numbers: Iterable[int]) -> list[dict[str, Any]]:
    """Return a row for each number."""
    return [ticket(number) for number in numbers]


# -- the customer -----------------------------------------------------------------------------------------------------


class Customer:
    """The customer: a model if the server has one for the role `user`, else a script."""

    def __init__(self, ticket: Ticket, model: Any) -> None:
        self.ticket, self.model = ticket, model
        self.served = 0  # wishes for which the script has received a result
        wishes = "\n".join(f"- {wish.words}" for wish in ticket.wishes)
        self.messages = [
            {
                "role": "system",
                "content": f"You are {ticket.name}, a customer who writes to a shop; the user is its clerk. You want:\n"
                f"{wishes}\nYour e-mail is {ticket.email}. Write one or two sentences, with one wish at a time. Tell your "
                "e-mail when you are asked. Invent nothing. When the clerk has granted or declined each wish, accept "
                "it, and say goodbye with that very word; never say it before.",
            },
            {"role": "user", "content": "Good day, how can I help you?"},
        ]

    def begin(self) -> str:
        """Return the first message. If the server has no model, the script plays the customer for the whole episode."""
        try:
            return self.asked()
        except Unavailable:
            self.model = None
            return f"Hello, this is {self.ticket.name}. {self.ticket.wishes[0].words}"

    def answer(self, words: str) -> str:
        """Return the customer's reply to the clerk."""
        if self.model is None:
            return self.scripted(words)
        self.messages.append({"role": "user", "content": words})
        return self.asked()

    def asked(self) -> str:
        """Return the model's reply. If the model fails, the rollout fails. The script does not take over."""
        reply = str(self.model.ask(self.messages, temperature=0).message.get("content") or "").strip()[:1000]
        self.messages.append({"role": "assistant", "content": reply})
        return reply or "…"

    def scripted(self, words: str) -> str:
        """Answer a question with all known facts. Other text counts as the result of the current wish."""
        wishes = self.ticket.wishes
        if "?" in words and "else" not in words:
            return f"My e-mail is {self.ticket.email}. {wishes[min(self.served, len(wishes) - 1)].words}"
        self.served += 1
        if self.served < len(wishes):
            return f"Thank you. There is one more thing. {wishes[self.served].words}"
        return "Thank you, goodbye."


# -- the desk ---------------------------------------------------------------------------------------------------------

OrderId = Annotated[int, Field(ge=1001, le=1020)]
Sentence = Annotated[str, Field(min_length=5, max_length=500)]


@app.environment(
    "__app_name__",
    tasks={"train": lambda: tickets(range(1000)), "test": lambda: tickets(range(10_000, 10_200))},  # other shops
    row=Ticket,
    max_steps=40,
    models=("user",),
    baselines={"noop": 0.0, "random": 0.02},  # if doing nothing or random play earns more, the rubrics are wrong
    accept={"private": "The customer's messages describe what the row calls a kind."},  # of `taskapp doctor`
)
class Desk:
    """You are the clerk at a shop's customer service. Help the customer who writes to you, by these rules.

    Find the customer by e-mail before anything else; ask for it. Change only orders of this very customer.
    The tools say what may be cancelled, sent elsewhere and refunded. Do what the customer wants and the rules allow,
    nothing more. What the rules do not allow is declined: write a note with the topic "declined" on that order, and
    tell the customer. Tell the result of each wish. The conversation is over when the customer says goodbye.
    """

    def __init__(self, patience: Annotated[int, Field(ge=1, le=20)] = 8):
        self.patience = patience  # in env.config; after this many replies, the customer leaves

    def reset(self, task: Ticket, context: Any) -> str:
        self.open(task)
        self.customer = Customer(task, context.model("user"))
        return f"Today is {TODAY}. A customer writes.\nCustomer: {self.customer.begin()}"

    def open(self, task: Ticket) -> None:
        """Open the shop's database. No customer has written yet."""
        self.database = open_shop(task.shop)
        self.found: set[int] = set()  # the customers whom the clerk has found
        self.entries = self.replies = 0

    def close(self) -> None:
        """Close the database. The kit calls this method at the end of every episode, also after a failure."""
        if hasattr(self, "database"):
            self.database.close()

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        return [dict(row) for row in self.database.execute(query, values)]

    def change(self, told: str, statement: str, *values: Any) -> str:
        """Execute a statement that changes the database, and return `told`, which the clerk reads."""
        self.database.execute(statement, values)
        self.entries += 1
        return f"Entry {self.entries}: {told}"

    def order(self, order_id: int) -> dict[str, Any]:
        """Return the row of an order. Refuse the action if the order is unknown or its customer was not found yet."""
        if not self.found:
            raise InvalidAction("Find the customer by e-mail first.")
        rows = self.rows("select * from orders where id = ?", order_id)
        if not rows:
            raise InvalidAction(f"There is no order {order_id}.")
        return rows[0]

    def open_order(self, order_id: int, wanted: str) -> None:
        """Refuse the action if the order is not open."""
        status = self.order(order_id)["status"]
        if status != "open":
            raise InvalidAction(f"Order {order_id} cannot be {wanted}: it is {status}, not open.")

    # The built-in policy `noop` uses `noop=`. `random` uses `sample=` for parameters without bounds.
    @action(noop={"email": "nobody@example.org"}, sample=lambda rng: {"email": an_email(rng)})
    def find_customer(self, email: str) -> dict[str, Any]:
        """Find a customer by e-mail."""
        customers = self.rows("select * from customers where email = ?", email.strip().lower())
        self.found |= {row["id"] for row in customers}
        return {"customers": customers}

    @action
    def list_orders(self, customer_id: Annotated[int, Field(ge=1, le=5)]) -> dict[str, Any]:
        """List the orders of a customer who was found by e-mail."""
        if customer_id not in self.found:
            raise InvalidAction(f"Customer {customer_id} was not found by e-mail; use find_customer.")
        return {"orders": self.rows("select id, status, delivered from orders where customer_id = ?", customer_id)}

    @action
    def get_order(self, order_id: OrderId) -> dict[str, Any]:
        """Look at an order: whose it is, status (open, sent, delivered, cancelled), day of delivery, items, refunds."""
        items = self.rows(
            "select items.id, name, items.cents, refunds.cents is not null as refunded from items "
            "left join refunds on refunds.item_id = items.id where order_id = ?",
            order_id,
        )
        return {**self.order(order_id), "items": items}

    @action
    def cancel_order(self, order_id: OrderId) -> str:
        """Cancel an order. Only an open one can be; one that was sent or delivered cannot."""
        self.open_order(order_id, "cancelled")
        return self.change(
            f"order {order_id} is cancelled.", "update orders set status = 'cancelled' where id = ?", order_id
        )

    @action(sample=lambda rng: {"order_id": rng.randint(1001, 1020), "address": an_address(rng)})
    def change_address(self, order_id: OrderId, address: Sentence) -> str:
        """Send an order elsewhere. Only an open one can be. Write the address as the customer wrote it."""
        self.open_order(order_id, "sent elsewhere")
        address = " ".join(address.split()).rstrip(".")
        told = f"order {order_id} goes to {address}."
        return self.change(told, "update orders set address = ? where id = ?", address, order_id)

    # The database does not prevent a clerk from breaking this rule. The rubrics detect it.
    @action
    def refund(self, item_id: Annotated[int, Field(ge=1, le=100)]) -> str:
        """Pay an item back. Allowed within 30 days of delivery, never for gift cards. This is not checked: check it."""
        items = self.rows("select * from items where id = ?", item_id)
        if not items:
            raise InvalidAction(f"There is no item {item_id}; get_order lists the items of an order.")
        (item,) = items
        if self.order(item["order_id"])["status"] != "delivered":
            raise InvalidAction(f"Item {item_id} cannot be refunded: it is not delivered.")
        if self.rows("select * from refunds where item_id = ?", item_id):
            raise InvalidAction(f"Item {item_id} is refunded already.")
        told = f"item {item_id} is refunded with {item['cents'] / 100:.2f}."
        return self.change(told, "insert into refunds values (?, ?)", item_id, item["cents"])

    @action(sample=lambda rng: {"order_id": rng.randint(1001, 1020), "topic": "declined", "text": "No."})
    def add_note(self, order_id: OrderId, topic: Literal["declined", "other"], text: Sentence) -> str:
        """Write a note on an order: "declined" where the rules do not allow what the customer wants."""
        self.order(order_id)
        statement = "insert into notes (order_id, topic, text) values (?, ?, ?)"
        return self.change(f"a note on order {order_id}.", statement, order_id, topic, text)

    @action(text=True, sample=lambda rng: rng.choice(("What is your e-mail?", "It is done.")))  # a model's plain text
    def reply(self, words: str) -> Step:
        """Speak to the customer. Ask with a question mark; anything else is taken for the result."""
        if not words.strip() or len(words) > 2000:
            raise InvalidAction("Say something of at most 2000 characters, or use a tool.")
        self.replies += 1
        said = self.customer.answer(words)
        if self.replies == self.patience and "goodbye" not in said.lower():
            said = "I have no more time for this. Goodbye."
        return Step(f"Customer: {said}", terminated="goodbye" in said.lower())

    def final_state(self) -> dict[str, Any]:
        """Return the end state for the rubrics. Policies and callers never see it."""
        return {**tables(self.database), "customer": "script" if self.customer.model is None else "model"}


# -- scoring: of the database, not of the conversation ----------------------------------------------------------------


def states(task: Ticket) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """The facts in the shop's tables before, and after each wish was served correctly."""
    desk = Desk()  # the class also works without the kit
    desk.open(task)
    before = facts(tables(desk.database))
    desk.find_customer(task.email)
    for wish in task.wishes:
        ((name, args),) = wish.call.items()
        getattr(desk, name)(**args)
    after = facts(tables(desk.database))
    desk.close()
    return before, after


# `required` means that a score of 0 makes the whole outcome 0, so both rubrics must be satisfied.
@app.rubric(weight=3, required=True)
def resolved(trajectory: Trajectory, task: Ticket) -> float:
    """Everything that the customer's wishes ask for, under the rules, is in the database."""
    before, after = states(task)
    return float(after - before <= facts(trajectory.final_state))


@app.rubric(weight=1, required=True)
def nothing_else(trajectory: Trajectory, task: Ticket) -> float:
    """Nothing else in the database was changed."""
    before, after = states(task)
    return float(facts(trajectory.final_state) - before <= after)


@app.rubric(weight=0.25)
def polite(trajectory: Trajectory) -> float:
    """The last reply thanks, welcomes, asks kindly or is sorry."""
    said = [step.args["words"] for step in trajectory.actions("reply") if step.refused is None]
    return float(bool(said and re.search(r"thank|please|sorry|welcome|glad|apolog", said[-1], re.IGNORECASE)))


@app.rubric(weight=0.25)
def short(trajectory: Trajectory) -> float:
    """The share of replies with at most 60 words; 0 without a reply."""
    said = [step.args["words"] for step in trajectory.actions("reply") if step.refused is None]
    return sum(len(words.split()) <= 60 for words in said) / len(said) if said else 0.0


@app.metric
def scripted_customer(trajectory: Trajectory) -> float:
    """1 where the customer was the script, 0 where a model played him: do not compare the two."""
    return float(trajectory.final_state["customer"] == "script")


# The example of good play. Only this policy can read the private fields of a row.
@app.policy("gold")
def gold(observation: Any, task: Ticket) -> dict[str, Any] | str:
    """Find the customer, serve every wish, then report the results until the customer is content."""
    if isinstance(observation, str) and observation.startswith("Today"):
        return {"find_customer": {"email": task.email}}
    entry = re.match(r"Entry (\d+)", observation) if isinstance(observation, str) else None
    done = int(entry[1]) if entry else 0 if isinstance(observation, dict) else len(task.wishes)
    if done < len(task.wishes):
        return task.wishes[done].call
    return "I have seen to it, as far as our rules allow. Thank you for writing to us."


# -- how a model plays ------------------------------------------------------------------------------------------------

CHANGES = {"cancel_order", "change_address", "refund"}
SECOND_LOOK = (
    "Not done yet. Say in a sentence whose order it is, which rule allows this, and which fact of the order shows it. "
    "Then call the tool again, unchanged; or decline with a note."
)


# Replaces the kit's own loop for requests with a model. `gold` and other scripted policies do not use this function.
@app.rollout
async def play(env: Any, model: Any) -> None:
    """Let the model act. Before each change to the database, ask the model once to confirm the change."""
    messages = [
        {"role": "system", "content": f"{inspect.getdoc(Desk)}\n\nUse the tools; your plain words go to the customer."},
        {"role": "user", "content": env.observation},
    ]
    held: set[tuple[str, str]] = set()
    while not env.done:
        answer = await model.chat(messages, tools=env.tools)
        calls, words = answer.message.get("tool_calls") or [], answer.message.get("content") or ""
        messages.append(answer.message)
        for call in calls:
            name, written = call["function"]["name"], call["function"]["arguments"]
            if name in CHANGES and (name, written) not in held and len(held) < 5:
                held.add((name, written))
                told: Any = SECOND_LOOK
            else:
                told = (await env.step(name, arguments(written))).observation
            content = told if isinstance(told, str) else json.dumps(told)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        if not calls:
            step = await env.step("reply", {"words": words})
            messages.append({"role": "user", "content": step.observation})


def arguments(written: str) -> Any:
    """Parse the arguments of a call. Invalid JSON is returned as a string, which the kit rejects with a reason."""
    try:
        read = json.loads(written or "{}")
    except ValueError:
        return written
    return read if isinstance(read, dict) else written
