"""The mail site: its pages and forms, and the record of their changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ..site import Json, Page, Pages, Request
from .boxes import TITLES, Boxes
from .data import ORIGIN, Content, Message, Person, Ticket, day_text
from .desk import FILTERS, Desk
from .letters import Draft, Refused, first_draft, letter, typed
from .paging import PageOfList, number, page_of_list
from .record import record

PAGES = Pages(Path(__file__).parent / "templates")
QUERY_LENGTH = 80


class MailSite:
    """The mailbox of one episode."""

    origin = ORIGIN

    def __init__(self, content: Content) -> None:
        self.content = content
        self._boxes = Boxes(content)
        self._desk = Desk(content)
        self._letters = list(content.letters)
        self._notice = ""

    def record(self) -> dict[str, Json]:
        """Return the folder and labels of each message, the sent letters, and the tickets with their new notes."""
        return record(self._boxes.folder, self._boxes.labels, self._letters, self._desk.tickets.values())

    def handle(self, request: Request) -> Page:
        """Return the requested page."""
        parts = [part for part in request.path.split("/") if part]
        match (request.method, *parts):
            case ("GET",):
                return self._list(request, "inbox")
            case ("GET", "folder", name) if name in TITLES:
                return self._list(request, name)
            case ("POST", "folder", name) if name in TITLES:
                return self._apply(request, name)
            case ("GET" | "POST", "message", id_, *rest) if (found := self._message(id_)) is not None:
                return self._about_message(request, found, rest)
            case ("GET" | "POST", "write"):
                return self._write(request, "new", None)
            case ("GET", "sent"):
                return self._sent(request)
            case ("GET", "sent", index) if (at := number(index)) is not None and 0 < at <= len(self._letters):
                return self._render("letter.html", f"Sent message {at}", letter=self._letters[at - 1])
            case ("GET", "contacts"):
                return self._contacts(request)
            case ("GET", "tickets"):
                return self._tickets(request)
            case ("GET" | "POST", "tickets", name) if (ticket := self._desk.tickets.get(name)) is not None:
                return self._ticket(request, ticket)
        return self._render("missing.html", "Page not found", status=404)

    def _render(self, template: str, title: str, status: int = 200, problem: str = "", **values: Any) -> Page:
        notice, self._notice = self._notice, ""
        return PAGES.render(
            template,
            status,
            site_name=f"{self.content.company} support",
            title=title,
            notice=notice,
            problem=problem,
            today=day_text(self.content.today),
            day_text=day_text,
            **values,
        )

    def _done(self, notice: str, location: str) -> Page:
        self._notice = notice
        return Page(location=location)

    def _message(self, id_: str) -> Message | None:
        return self._boxes.messages.get(number(id_) or 0)

    def _page(self, items: Sequence[Any], request: Request, path: str, **query: str) -> PageOfList:
        return page_of_list(items, self.content.rows, number(request.query.get("page", "")) or 1, path, query)

    def _list(self, request: Request, name: str, problem: str = "", marked: Sequence[str] = ()) -> Page:
        query = " ".join(request.query.get("q", "").split())[:QUERY_LENGTH]
        return self._render(
            "folder.html",
            TITLES[name],
            422 if problem else 200,
            problem,
            folder=name,
            query=query,
            page=self._page(self._boxes.listed(name, query), request, f"/folder/{name}", q=query),
            boxes=self._boxes,
            titles=TITLES,
            marked=marked,
        )

    def _apply(self, request: Request, name: str) -> Page:
        marked = request.form.get("message", ())
        ids = [message.id for id_ in dict.fromkeys(marked) if (message := self._message(id_)) is not None]
        try:
            notice = self._boxes.apply(request.value("action"), ids)
        except Refused as refused:
            return self._list(request, name, str(refused), marked)
        query = urlencode({name: request.query[name][:QUERY_LENGTH] for name in ("q", "page") if name in request.query})
        return self._done(notice, f"/folder/{name}" + (f"?{query}" if query else ""))

    def _about_message(self, request: Request, message: Message, rest: list[str]) -> Page:
        match (request.method, *rest):
            case ("GET",):
                return self._show(message)
            case ("POST",):
                return self._change(request, message)
            case (_, "reply" | "forward" as how):
                return self._write(request, how, message)
            case (_, "ticket"):
                return self._open_ticket(request, message)
        return self._render("missing.html", "Page not found", status=404)

    def _show(self, message: Message, problem: str = "") -> Page:
        return self._render(
            "message.html",
            message.subject,
            422 if problem else 200,
            problem,
            message=message,
            folder=TITLES[self._boxes.folder[message.id]],
            labels=self._boxes.labels[message.id],
            actions=[action for action in self._boxes.actions if not self._is_so(message, action)],
            answered=[sent for sent in self._letters if sent.about == message.id],
            ticket=self._desk.of_message(message.id),
        )

    def _is_so(self, message: Message, action: str) -> bool:
        labels = self._boxes.labels[message.id]
        return action == f"Move to {TITLES[self._boxes.folder[message.id]]}" or (
            action.startswith("Add label ") and action.removeprefix("Add label ") in labels
        )

    def _change(self, request: Request, message: Message) -> Page:
        try:
            if label := request.value("unlabel"):
                notice = self._boxes.unlabel(message.id, label)
            else:
                notice = self._boxes.apply(request.value("action"), [message.id])
        except Refused as refused:
            return self._show(message, str(refused))
        return self._done(notice, f"/message/{message.id}")

    def _write(self, request: Request, how: str, message: Message | None) -> Page:
        draft, problem = first_draft(how, message), ""
        if request.method == "POST":
            draft = typed(request)
            try:
                self._letters.append(letter(self.content, how, message, draft, self.content.today))
            except Refused as refused:
                problem = str(refused)
            else:
                notice = {"reply": "Your reply", "forward": "The message"}.get(how, "Your message") + " was sent."
                return self._done(notice, f"/message/{message.id}" if message else "/sent")
        return self._draft(how, message, draft, problem)

    def _draft(self, how: str, message: Message | None, draft: Draft, problem: str) -> Page:
        title = {"reply": "Reply", "forward": "Forward"}.get(how, "New message")
        return self._render(
            "write.html", title, 422 if problem else 200, problem, how=how, message=message, draft=draft
        )

    def _sent(self, request: Request) -> Page:
        newest_first = list(enumerate(self._letters, 1))[::-1]
        return self._render("sent.html", "Sent", page=self._page(newest_first, request, "/sent"))

    def _contacts(self, request: Request) -> Page:
        query = " ".join(request.query.get("q", "").split())[:QUERY_LENGTH]

        def fits(person: Person) -> bool:
            whole = " ".join((person.name, person.address, person.department, person.office)).lower()
            return all(word in whole for word in query.lower().split())

        found = [person for person in self.content.contacts if fits(person)]
        return self._render(
            "contacts.html", "Address book", query=query, page=self._page(found, request, "/contacts", q=query)
        )

    def _tickets(self, request: Request) -> Page:
        options = self._desk.options
        filters = {name: request.query.get(name, "") for name in FILTERS}
        filters = {name: value if value in options[name] else "" for name, value in filters.items()}
        page = self._page(self._desk.listed(filters), request, "/tickets", **filters)
        return self._render("tickets.html", "Tickets", page=page, options=options, filters=filters)

    def _ticket(self, request: Request, ticket: Ticket) -> Page:
        values: Mapping[str, str] = {"assignee": ticket.assignee, "priority": ticket.priority, "status": ticket.status}
        problem = ""
        if request.method == "POST":
            try:
                return self._done(self._desk.update(ticket, request), f"/tickets/{ticket.number}")
            except Refused as refused:
                problem = str(refused)
                values = {name: request.value(name) for name in values}
        return self._render(
            "ticket.html",
            f"Ticket {ticket.number}",
            422 if problem else 200,
            problem,
            ticket=ticket,
            values=values,
            note=request.value("note")[:1000],
            options=self._desk.options,
        )

    def _open_ticket(self, request: Request, message: Message) -> Page:
        values = {"subject": message.subject, "product": "", "priority": "Normal", "assignee": ""}
        problem = ""
        if request.method == "POST":
            try:
                ticket = self._desk.open(message, request, self.content.today)
                return self._done(f"Ticket {ticket.number} was opened.", f"/tickets/{ticket.number}")
            except Refused as refused:
                problem = str(refused)
                values = {name: request.value(name)[:200] for name in values}
        return self._render(
            "new_ticket.html",
            "New ticket",
            422 if problem else 200,
            problem,
            message=message,
            values=values,
            options=self._desk.options,
        )
