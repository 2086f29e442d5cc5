"""Print the address label of a parcel."""

from pydantic import BaseModel

from taskapp_kit import Private, Step, TaskApp, action

app = TaskApp("address-labels", description="Labels for parcels.")
WIDTH = 16


class Row(BaseModel):
    """One parcel."""

    customer: str
    address: Private[str]


ADDRESSES = {
    "Ms. Hill moved from Bath to 12 Mill Lane, York": "12 Mill Lane, York",
    "Mr. Ode lives at 7 Harbour View, Dover": "7 Harbour View, Dover",
    "Dr. Lam's practice is in Leeds, at 140 King Street": "140 King Street, Leeds",
    "Send it to Ripon please, 3 Abbey Crescent": "3 Abbey Crescent, Ripon",
    "We are in Derby. The house is 88 Station Road": "88 Station Road, Derby",
    "Ella's flat: 21 Orchard Close. Town: Luton": "21 Orchard Close, Luton",
}
ROWS = [Row(customer=customer, address=address) for customer, address in ADDRESSES.items()]


@app.environment(
    "label",
    tasks={"train": ROWS},
    row=Row,
    max_steps=3,
    accept={"private": "The task is to find the answer in the text."},
)
class Label:
    """The label states street and town, as in `5 Park Road, Hull`."""

    def reset(self, task: Row) -> str:
        self.address = task.address
        return f"{task.customer}. Print the label as in `5 Park Road, Hull`."

    @action(sample=lambda rng: {"text": f"{rng.randint(1, 99)} Park Road, Hull"})
    def print_label(self, text: str) -> Step:
        """Print a label. It has room for one line."""
        printed = text[:WIDTH]
        return Step(f"printed: {printed}", reward=float(text == self.address), terminated=True)


@app.policy("gold")
def gold(task: Row) -> dict[str, dict[str, str]]:
    """Print the address."""
    return {"print_label": {"text": task.address}}
