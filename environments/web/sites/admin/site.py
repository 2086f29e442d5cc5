"""The routes of the back office. `forms.py` contains the changes to the books."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..site import Json, Page, Pages, Request
from .data import Books, Contract, TableName
from .fields import FIELDS
from .forms import add_record, apply_action, log, read_fields, save_record
from .listing import Listing, listing
from .options import Setting, settings_of
from .reading import Wrong
from .tables import TABLES, Table, cells

ORIGIN = "https://admin.test"
PAGES = Pages(Path(__file__).parent / "templates")
LABELS = {"id": "Number", "reminder": "Reminder", "state": "State"}


class AdminSite:
    """The back office of one company."""

    origin = ORIGIN

    def __init__(self, books: Books) -> None:
        self.books = books
        self._notice = ""

    def record(self) -> dict[str, Json]:
        """Return the records of all tables and the settings."""
        return self.books.record()

    def handle(self, request: Request) -> Page:
        """Return the requested page."""
        posted = request.method == "POST"
        match [part for part in request.path.split("/") if part]:
            case []:
                return self._home()
            case [name] if table := TABLES.get(name):
                return self._apply(table, request) if posted else self._list(listing(self.books, table, request.query))
            case ["machines" | "contracts" | "customers" as name, "add"]:
                return self._add(name, request)
            case ["machines" | "contracts" | "customers" as name, id] if id in self.books.table(name):
                return self._record(name, id)
            case ["machines" | "contracts" | "customers" as name, id, "edit"] if id in self.books.table(name):
                return self._edit(name, id, request)
            case ["settings"]:
                return self._settings(self._sections()[0], request)
            case ["settings", section] if section.capitalize() in self._sections():
                return self._settings(section.capitalize(), request)
        return self._page("missing.html", "Page not found", status=404)

    def _page(self, template: str, title: str, status: int = 200, **values: Any) -> Page:
        notice, self._notice = self._notice, ""
        values = {"problem": "", "here": "", **values}
        return PAGES.render(
            template, status, title=title, site_name=self.books.company, tables=TABLES, notice=notice, **values
        )

    def _done(self, notice: str, path: str) -> Page:
        self._notice = notice
        return Page(location=path)

    def _home(self) -> Page:
        books = self.books
        counts = {
            "Machines": len(books.machines),
            "Machines in repair": sum(machine.state == "In repair" for machine in books.machines.values()),
            "Contracts": len(books.contracts),
            "Contracts overdue": sum(books.state_of(contract) == "Overdue" for contract in books.contracts.values()),
            "Customers": len(books.customers),
        }
        return self._page("home.html", "Overview", counts=counts, today=books.today)

    def _list(self, shown: Listing, problem: str = "", ticked: tuple[str, ...] = ()) -> Page:
        return self._page(
            "list.html",
            shown.table.title,
            here=shown.table.name,
            table=shown.table,
            shown=shown,
            books=self.books,
            problem=problem,
            ticked=ticked,
        )

    def _apply(self, table: Table, request: Request) -> Page:
        shown = listing(self.books, table, request.query)
        ids = tuple(dict.fromkeys(request.form.get("row", ())))
        try:
            notice = apply_action(self.books, table, request.value("action"), ids)
        except Wrong as wrong:
            return self._list(shown, str(wrong), ids)
        return self._done(notice, shown.here)

    def _record(self, name: TableName, id: str) -> Page:
        item = self.books.table(name)[id]
        labels = LABELS | {field.key: field.label for field in FIELDS[name]}
        facts = {labels[key]: value for key, value in cells(self.books, item).items()}
        return self._page(
            "record.html",
            id if isinstance(item, Contract) else item.name,
            here=name,
            table=TABLES[name],
            id=id,
            facts=facts,
            ended=self._ended(name, id),
        )

    def _ended(self, name: TableName, id: str) -> bool:
        return name == "contracts" and self.books.contracts[id].returned

    def _edit(self, name: TableName, id: str, request: Request) -> Page:
        ended = self._ended(name, id)
        item = self.books.table(name)[id]
        open_ = tuple(field for field in FIELDS[name] if not field.only_new and not (ended and field.locked_at_end))
        values = {field.key: str(getattr(item, field.key)) for field in FIELDS[name]}
        problem = ""
        if request.method == "POST":
            values |= {field.key: request.value(field.key) for field in open_}
            try:
                changed = save_record(self.books, name, id, read_fields(self.books, open_, values))
                return self._done("Saved." if changed else "Nothing was changed.", f"/{name}/{id}")
            except Wrong as wrong:
                problem = str(wrong)
        return self._form(name, id, values, {field.key for field in open_}, problem, ended=ended)

    def _add(self, name: TableName, request: Request) -> Page:
        values = {field.key: "" for field in FIELDS[name]}
        problem = ""
        if request.method == "POST":
            values = {key: request.value(key) for key in values}
            try:
                new = add_record(self.books, name, read_fields(self.books, FIELDS[name], values))
                return self._done("Added.", f"/{name}/{new}")
            except Wrong as wrong:
                problem = str(wrong)
        return self._form(name, "", values, set(values), problem, ended=False)

    def _form(
        self, name: TableName, id: str, values: dict[str, str], open_: set[str], problem: str, ended: bool
    ) -> Page:
        table = TABLES[name]
        fields = [field for field in FIELDS[name] if not (id and field.only_new)]
        title = f"Add a {table.one}" if not id else f"Edit {values.get('name', id)}"
        return self._page(
            "form.html",
            title,
            here=name,
            table=table,
            id=id,
            fields=fields,
            values=values,
            open_=open_,
            problem=problem,
            ended=ended,
            books=self.books,
        )

    def _sections(self) -> list[str]:
        return list(dict.fromkeys(each.section for each in settings_of(self.books.level, self.books.depots)))

    def _settings(self, section: str, request: Request) -> Page:
        books = self.books
        here = [each for each in settings_of(books.level, books.depots) if each.section == section]
        values: dict[str, str | int | bool] = {each.key: books.settings[each.key] for each in here}
        problem = ""
        if request.method == "POST":
            try:
                return self._save_settings(section, {each: each.read(request.form) for each in here})
            except Wrong as wrong:
                problem = str(wrong)
            for each in here:
                values[each.key] = each.key in request.form if each.shape == "check" else request.value(each.key)
        return self._page(
            "settings.html",
            f"Settings: {section}",
            here="settings",
            section=section,
            sections=self._sections(),
            settings=here,
            values=values,
            problem=problem,
        )

    def _save_settings(self, section: str, read: dict[Setting, str | int | bool]) -> Page:
        for setting, value in read.items():
            if self.books.settings[setting.key] != value:
                self.books.settings[setting.key] = value
                log(self.books, "Settings", f"{setting.label} set")
        return self._done("The settings were saved.", f"/settings/{section.lower()}")
