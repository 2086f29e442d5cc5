"""The initial records of the company, created with a random number generator."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import Literal

from ..kind import Level
from ..site import Json
from . import names
from .options import first_settings

STATES = ("Available", "Lent", "In repair", "Stopped")
GROUPS = ("Private", "Trade", "Public")
TableName = Literal["machines", "contracts", "customers"]
TABLES: tuple[TableName, ...] = ("machines", "contracts", "customers")


@dataclass
class Machine:
    """A machine; `name` is unique, such as `Pump 3`. `rate` is the price of a day."""

    id: str
    name: str
    depot: str
    state: str
    rate: int
    hours: int
    year: int


@dataclass
class Customer:
    """A customer; `name` is unique."""

    id: str
    name: str
    town: str
    group: str
    email: str
    phone: str


@dataclass
class Contract:
    """A machine lent to a customer, both by name, from `start` to `end` (days as YYYY-MM-DD)."""

    id: str
    customer: str
    machine: str
    start: str
    end: str
    deposit: int
    contact: str
    returned: bool
    reminded: bool


Record = Machine | Customer | Contract


@dataclass(frozen=True)
class Change:
    """An entry of the list of changes. `about` is the table's title."""

    number: int
    day: str
    who: str
    about: str
    what: str


@dataclass(frozen=True)
class Size:
    """How much a level's company holds, and how many rows a page of a table shows."""

    machines: int
    customers: int
    contracts: int
    changes: int
    depots: int
    types: int
    staff: int
    rows: int


SIZES: dict[Level, Size] = {
    "easy": Size(11, 6, 9, 8, 2, 3, 2, 3),
    "medium": Size(22, 14, 20, 18, 3, 4, 3, 7),
    "hard": Size(40, 24, 36, 44, 4, 5, 4, 10),
}


@dataclass
class Books:
    """All data of the company. The date is always `today`."""

    level: Level
    company: str
    today: str
    depots: tuple[str, ...]
    types: tuple[str, ...]
    staff: tuple[str, ...]
    towns: tuple[str, ...]
    rows: int
    machines: dict[str, Machine]
    customers: dict[str, Customer]
    contracts: dict[str, Contract]
    changes: list[Change]
    settings: dict[str, str | int | bool]

    def table(self, name: TableName) -> dict[str, Record]:
        """Return the records of a table by their id: a copy of the mapping, with the records themselves."""
        match name:
            case "machines":
                return {**self.machines}
            case "customers":
                return {**self.customers}
            case "contracts":
                return {**self.contracts}

    def state_of(self, contract: Contract) -> str:
        """Open, Overdue or Ended: follows from the contract's end and whether the machine is back."""
        if contract.returned:
            return "Ended"
        return "Overdue" if contract.end < self.today else "Open"

    def record(self) -> dict[str, Json]:
        """Return the data as JSON, without the list of changes: a mistake that is put right leaves no trace in it."""
        tables: dict[str, Json] = {
            name: {item.id: asdict(item) for item in self.table(name).values()} for name in TABLES
        }
        return {**tables, "settings": dict(self.settings)}


def make_books(random_: random.Random, level: Level) -> Books:
    """Return a company of a level's size."""
    size = SIZES[level]
    today = date(random_.randint(2031, 2038), random_.randint(1, 12), random_.randint(1, 28))
    depots = tuple(random_.sample(names.DEPOTS, size.depots))
    types = tuple(random_.sample(names.TYPES, size.types))
    company, *towns = names.distinct_words(random_, 1 + max(3, size.customers // 4))
    machines = _machines(random_, size, depots, types, today.year)
    customers = _customers(random_, size, towns)
    contracts = _contracts(random_, size, machines, customers, today)
    for contract in contracts:
        if not contract.returned:
            next(machine for machine in machines if machine.name == contract.machine).state = "Lent"
    staff = tuple(names.people(random_, size.staff))
    return Books(
        level=level,
        company=f"{company} Hire",
        today=today.isoformat(),
        depots=depots,
        types=types,
        staff=staff,
        towns=tuple(towns),
        rows=size.rows,
        machines={machine.id: machine for machine in machines},
        customers={customer.id: customer for customer in customers},
        contracts={contract.id: contract for contract in contracts},
        changes=_changes(random_, size, staff, machines, contracts, customers, today),
        settings=first_settings(random_, level, depots),
    )


def _machines(
    random_: random.Random, size: Size, depots: tuple[str, ...], types: tuple[str, ...], year: int
) -> list[Machine]:
    called: list[str] = []
    while len(called) < size.machines:
        name = f"{random_.choice(types)} {random_.randint(1, 9 + size.machines)}"
        if name not in called:
            called.append(name)
    first = random_.randint(101, 400)
    return [
        Machine(
            id=f"M-{first + place}",
            name=name,
            depot=random_.choice(depots),
            state=random_.choice([state for state in STATES if state != "Lent"]),
            rate=random_.randint(6, 50) * 5,
            hours=random_.randint(4, 240) * 25,
            year=year - random_.randint(1, 14),
        )
        for place, name in enumerate(called)
    ]


def _customers(random_: random.Random, size: Size, towns: list[str]) -> list[Customer]:
    phones = random_.sample(range(1000, 10000), size.customers)
    first = random_.randint(11, 60)
    return [
        Customer(
            id=f"K-{first + place}",
            name=name,
            town=random_.choice(towns),
            group=random_.choice(GROUPS),
            email=f"{random_.choice(('office', 'post', 'hello'))}@{name.split()[0].lower()}.test",
            phone=f"555-{phone}",
        )
        for place, (name, phone) in enumerate(zip(names.companies(random_, size.customers), phones, strict=True))
    ]


def _contracts(
    random_: random.Random, size: Size, machines: list[Machine], customers: list[Customer], today: date
) -> list[Contract]:
    free = random_.sample(machines, len(machines))  # each machine has at most one running contract
    first = random_.randint(2001, 6000)
    contracts = []
    for place in range(size.contracts):
        returned = random_.random() < 0.45
        start = today - timedelta(days=random_.randint(5, 60))
        end = min(start + timedelta(days=random_.randint(2, 70)), today + timedelta(days=20))
        if returned:
            end = min(end, today - timedelta(days=1))
        contracts.append(
            Contract(
                id=f"C-{first + place}",
                customer=random_.choice(customers).name,
                machine=random_.choice(machines).name if returned else free.pop().name,
                start=start.isoformat(),
                end=end.isoformat(),
                deposit=random_.randint(2, 24) * 25,
                contact=" ".join(names.people(random_, 1)),
                returned=returned,
                reminded=not returned and random_.random() < 0.25,
            )
        )
    return contracts


def _changes(
    random_: random.Random,
    size: Size,
    staff: tuple[str, ...],
    machines: list[Machine],
    contracts: list[Contract],
    customers: list[Customer],
    today: date,
) -> list[Change]:
    day = today - timedelta(days=size.changes)
    changes = []
    for number in range(1, size.changes + 1):
        day += timedelta(days=random_.randint(0, 1))
        about, what = random_.choice(
            (
                ("Machines", f"{random_.choice(machines).name}: Hours run set"),
                ("Machines", f"{random_.choice(machines).name}: Depot set"),
                ("Contracts", f"{random_.choice(contracts).id}: Deposit set"),
                ("Contracts", f"{random_.choice(contracts).id}: Contact set"),
                ("Customers", f"{random_.choice(customers).name}: Phone set"),
            )
        )
        changes.append(Change(number, day.isoformat(), random_.choice(staff), about, what))
    return changes
