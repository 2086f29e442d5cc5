"""Fictional names, and text from which messages are built."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_NAMES = (
    "Ines", "Tobin", "Maren", "Oskar", "Leonie", "Dario", "Wanda", "Piet", "Selma", "Ruben", "Anneke", "Jorin",
    "Talia", "Bastian", "Mirela", "Casper", "Noor", "Emil", "Sunniva", "Rafe", "Ottilie", "Lorcan", "Delia", "Hanno",
)  # fmt: skip
LAST_NAMES = (
    "Calder", "Vossberg", "Thornby", "Ellory", "Marchetti", "Quist", "Dunhollow", "Arkwell", "Pemberly", "Saxtorp",
    "Hollins", "Brandvik", "Ostrova", "Kettering", "Lindqvar", "Fairholt", "Rosmond", "Tressell", "Wexley", "Norrgate",
    "Yarrowby", "Corvin", "Belhaven", "Stanmoor", "Iverby", "Uldane", "Grimsay", "Jessamy",
)  # fmt: skip
COMPANY_NAMES = (
    "Brightmoor", "Kestrow", "Tamsel", "Quillby", "Norvane", "Halvern", "Dunmarrow", "Fenwith", "Lorrimar", "Ostlund",
    "Greywick", "Appledon", "Sandrose", "Velmont", "Carrowby", "Thistlow",
)  # fmt: skip
COMPANY_TRADES = ("Hotels", "Clinics", "Schools", "Bakeries", "Gardens", "Studios", "Libraries", "Offices")
OWN_NAMES = ("Tarnhill", "Osterby", "Wickfold", "Pellmere", "Larkstead", "Rookhaven")
PRODUCT_NAMES = ("Tarn", "Sable", "Wick", "Orrel", "Pellow", "Drift", "Hazel", "Corbel")
PRODUCT_KINDS = ("desk", "lamp", "shelf", "chair", "cabinet", "stool", "bench")
DEPARTMENTS = ("Billing", "Logistics", "Repairs", "Sales", "Purchasing", "Quality")
OFFICES = ("Northgate", "Southport", "Eastvale", "Westmere")
TOWNS = ("Aldermere", "Brinkford", "Cotterham", "Dunwald", "Elmstead", "Farrowby")
LABELS = ("Follow up", "Billing team", "Waiting for parts", "Key account", "Courier", "Legal", "Second look")


@dataclass(frozen=True)
class Topic:
    """What a message can be about. Its numbers have names that the text and the goals use alike."""

    name: str
    near: str
    """The name of the topic that is most easily confused with this topic."""
    amount: str
    day: str
    openings: tuple[str, ...]


TOPICS = (
    Topic("Late delivery", "Early delivery", "delivery charge", "promised delivery day",
          ("The {product} that we ordered has still not arrived.", "We are still waiting for the {product}.")),
    Topic("Early delivery", "Late delivery", "express charge", "preferred delivery day",
          ("Could the {product} come sooner than planned?", "We need the {product} before the agreed week.")),
    Topic("Refund request", "Refund question", "amount to be refunded", "day of purchase",
          ("We sent the {product} back and ask for our money.", "Please refund the {product}; it does not fit.")),
    Topic("Refund question", "Refund request", "amount received", "day of the transfer",
          ("We have a question about the refund for the {product}.", "Your refund for the {product} puzzles us.")),
    Topic("Damaged parcel", "Missing parcel", "value of the parcel", "day of arrival",
          ("The parcel with the {product} was crushed on one side.", "The {product} came with a broken corner.")),
    Topic("Missing parcel", "Damaged parcel", "insured value", "day of dispatch",
          ("One of the parcels of the {product} never came.", "The second parcel of the {product} is lost, it seems.")),
    Topic("Invoice copy", "Invoice correction", "invoice total", "invoice date",
          ("Please send us the invoice for the {product} once more.", "We cannot find the invoice for the {product}.")),
    Topic("Invoice correction", "Invoice copy", "corrected total", "due date",
          ("The invoice for the {product} has the wrong address.", "There is a mistake in the {product} invoice.")),
    Topic("Repair date", "Repair cost", "call-out charge", "proposed repair day",
          ("When can somebody look at the {product}?", "We would like to fix a day for the {product}.")),
    Topic("Repair cost", "Repair date", "repair estimate", "day of the inspection",
          ("What will it cost to mend the {product}?", "Thank you for the estimate for the {product}.")),
)  # fmt: skip

FILLERS = (
    "A colleague at the front desk can let your driver in.",
    "The building closes at six, so mornings are better for us.",
    "We have been customers for several years and this has not happened before.",
    "Please write to this address only, as the old one is no longer read.",
    "The rest of what we bought is in daily use and works well.",
    "I have asked our accounts department to keep the papers.",
    "Our caretaker has taken pictures, in case you need them.",
    "There is no hurry, but a short answer would help us to plan.",
)
CLOSINGS = ("Kind regards", "With best wishes", "Thank you in advance", "Many thanks")

TICKET_SUBJECTS = (
    "Hinge does not close", "Surface is scratched", "Leg is too short", "Screws are missing", "Wrong colour delivered",
    "Drawer is stuck", "Switch has no effect", "Manual is missing", "Wobbles on a flat floor", "Paint comes off",
)  # fmt: skip
TICKET_NOTES = (
    "The customer was asked for a picture.",
    "A spare part has been ordered.",
    "The customer called and asked for news.",
    "The warehouse confirms the batch.",
    "The customer prefers an answer by mail.",
)

REPLIES = (
    "Thank you for your message. We will call you on {day}.",
    "We have passed this on and expect an answer by {day}.",
    "A replacement leaves our warehouse on {day}.",
    "Please keep the packaging until {day}.",
    "We are sorry for the trouble. It will be settled by {day}.",
)
HANDOVERS = (
    "Please take this over and answer by {day}.",
    "Can you check this with the warehouse before {day}?",
    "For your files. Nothing is due before {day}.",
    "Please call this customer on {day}.",
)
CLOSING_NOTES = (
    "Spare part sent on {day}.",
    "Settled by phone on {day}.",
    "Replacement delivered on {day}.",
    "Refund paid on {day}.",
)
ROUTINE_NOTES = (
    "Call the customer on {day}.",
    "Check the stock on {day}.",
    "Wait for the picture until {day}.",
    "Ask the courier on {day}.",
)
