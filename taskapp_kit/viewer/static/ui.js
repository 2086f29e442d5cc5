// Keyboard shortcuts, the slider, copying and live pages. Every page also works without this file.
"use strict";
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const typing = (target) => target.closest("input:not([type=checkbox]):not([type=radio]):not([type=range]), textarea, select, [contenteditable]");

  // -- the dialog with the keys ---------------------------------------------------------------------------------
  const keys = $("#keys");
  const shower = $("#show-keys");
  if (keys && shower) {
    shower.classList.remove("hidden");
    shower.addEventListener("click", () => keys.showModal());
  }

  // -- lists: one row is current --------------------------------------------------------------------------------
  let current = -1;
  const rows = () => $$("[data-list] tbody tr, ul[data-list] > li");
  const move = (by, focuses = true) => {
    const all = rows();
    if (!all.length || (current < 0 && !by)) return false;
    if (all[current]) all[current].classList.remove("current");
    current = Math.max(0, Math.min(all.length - 1, current + by));
    all[current].classList.add("current");
    const link = $("a", all[current]);
    if (link && focuses) link.focus({ preventScroll: true });
    if (focuses) all[current].scrollIntoView({ block: "nearest" });
    return true;
  };

  // -- two rollouts to compare ----------------------------------------------------------------------------------
  const picks = () => $$("input[name=pick]:checked");
  for (const form of $$("form[data-compare]")) {
    $$("input[name=pick]", form).forEach((box) =>
      box.addEventListener("change", () => {
        const first = $("input[type=hidden][name=a]", form);
        const chosen = picks().map((one) => one.value);
        const named = $$(".ids input:not([type=hidden])", form);
        named.forEach((field, index) => { field.value = chosen[index] || ""; });
        const most = first ? 1 : 2;
        if (chosen.length > most) box.checked = false;
      }));
    form.addEventListener("submit", (event) => {
      const first = $("input[type=hidden][name=a]", form);
      const chosen = picks().map((one) => one.value);
      if (first) chosen.unshift(first.value);
      if (chosen.length < 2) {
        if (!$(".ids", form)) event.preventDefault();
        return;
      }
      event.preventDefault();
      const to = new URL(form.action);
      to.search = new URLSearchParams({ a: chosen[0], b: chosen[1] });
      location.assign(to);
    });
  }

  // -- the slider -----------------------------------------------------------------------------------------------
  let step = null;
  for (const steps of $$("[data-steps]")) {
    const slider = $("input[type=range]", steps);
    const words = $("output", steps);
    const all = $("[data-all]", steps);
    const turns = $$(".turn[data-position]", steps);
    if (!turns.length) continue;
    steps.classList.add("stepping", "single");
    const show = (position, scroll) => {
      position = Math.max(0, Math.min(turns.length - 1, position));
      slider.value = position;
      words.textContent = position ? `turn ${position} of ${turns.length - 1}` : `start of ${turns.length - 1}`;
      turns.forEach((turn, index) => turn.classList.toggle("current", index === position));
      $$("svg.strip a", steps).forEach((link) =>
        link.classList.toggle("current", link.getAttribute("href") === `#turn-${position}`));
      if (scroll && !steps.classList.contains("single")) turns[position].scrollIntoView({ block: "start" });
    };
    const toggle = () => {
      const single = steps.classList.toggle("single");
      all.textContent = single ? "Show all" : "One at a time";
      show(Number(slider.value), true);
    };
    step = { by: (count) => show(Number(slider.value) + count, true), to: (position) => show(position, true), last: turns.length - 1, toggle };
    slider.addEventListener("input", () => show(Number(slider.value), true));
    $$("[data-step]", steps).forEach((button) => button.addEventListener("click", () => step.by(Number(button.dataset.step))));
    all.addEventListener("click", toggle);
    const fromAddress = () => {
      const named = /^#turn-(\d+)$/.exec(location.hash);
      if (named) show(Number(named[1]), false);
    };
    addEventListener("hashchange", fromAddress);
    show(0, false);
    fromAddress();
  }

  // -- copying --------------------------------------------------------------------------------------------------
  for (const button of $$("[data-copy]")) {
    button.classList.remove("hidden");
    button.addEventListener("click", async () => {
      const text = $(".said", button.closest(".message"));
      try {
        await navigator.clipboard.writeText(text.textContent.trim());
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(text);
        button.textContent = "Selected";
      }
    });
  }

  // -- annotating -----------------------------------------------------------------------------------------------
  const annotate = $("form[data-annotate]");
  const choose = (digit) => {
    const sets = $$("fieldset", annotate).filter((set) => $("input[type=radio]", set));
    const here = sets.findIndex((set) => set.contains(document.activeElement));
    const set = here >= 0 ? sets[here] : sets.find((one) => !$("input:checked", one)) || sets[0];
    const option = set && $$("input[type=radio]", set)[digit - 1];
    if (!option) return false;
    option.checked = true;
    const following = sets[sets.indexOf(set) + 1];
    if (following) $("input[type=radio]", following).focus();
    else $("button.main", annotate).focus();
    return true;
  };

  // -- live pages: the page fetches itself again ----------------------------------------------------------------
  const seconds = Number(document.body.dataset.refresh || 0);
  const refresh = async () => {
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", headers: { Accept: "text/html" } });
      if (answer.redirected) { location.assign(answer.url); return; }
      if (!answer.ok) { location.reload(); return; }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = $("[data-live]", page);
      const old = $("[data-live]");
      if (!fresh || !old) { location.reload(); return; }
      if (fresh.innerHTML !== old.innerHTML) {
        const open = new Set($$("details", old).map((item, index) => (item.open ? index : -1)));
        old.replaceWith(document.importNode(fresh, true));
        move(0, false);
        $$("[data-live] details").forEach((item, index) => { if (open.has(index)) item.open = true; });
        const following = $("[data-follow]");
        if (following && following.checked) scrollTo(0, document.documentElement.scrollHeight);
      }
    } catch { /* the server is temporarily unreachable, so try again later */ }
    setTimeout(refresh, seconds * 1000);
  };
  if (seconds) setTimeout(refresh, seconds * 1000);

  // -- playing: an action replaces the board without reloading the page --------------------------------------------
  let acting = false;
  const act = async (form, button) => {
    if (acting) return;
    acting = true;
    const board = $("[data-play]");
    const focused = document.activeElement && document.activeElement.id;
    const open = $$("details", board).map((item) => item.open);
    board.setAttribute("aria-busy", "true");
    try {
      const fields = new URLSearchParams(new FormData(form, button));
      const answer = await fetch(form.getAttribute("action"), { method: "POST", body: fields, credentials: "same-origin", headers: { Accept: "text/html" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = $("[data-play]", page);
      if (!answer.ok || !fresh || page.body.dataset.refresh) { location.assign(answer.redirected ? answer.url : location.href); return; }
      const made = document.importNode(fresh, true);
      board.replaceWith(made);
      const folds = $$("details", made);
      if (folds.length === open.length) folds.forEach((item, index) => { item.open = open[index]; });
      const again = focused && document.getElementById(focused);
      if (again && !again.matches("[data-press]")) again.focus({ preventScroll: true });
    } catch { location.reload(); } finally { acting = false; }
  };
  addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.closest("[data-play]")) return;
    event.preventDefault();
    act(form, event.submitter);
  });
  const press = (event) => {
    const key = event.key === " " ? "Space" : event.key;
    if (event.target.closest("a, button, summary, dialog") && (key === "Space" || key === "Enter")) return false;
    const button = $$("[data-play] [data-press]").find((one) => one.dataset.press.split(" ").includes(key));
    if (button && !acting) button.click();
    return Boolean(button);
  };

  // -- keys -----------------------------------------------------------------------------------------------------
  let going = false;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey && event.key === "Enter" && event.target.closest("[data-play] textarea")) { event.target.form.requestSubmit(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey || (keys && keys.open)) return;
    if (typing(event.target)) { if (event.key === "Escape") event.target.blur(); return; }
    const done = press(event) || pressed(event);
    if (done) event.preventDefault();
  });
  const pressed = (event) => {
    const key = event.key;
    if (going) {
      going = false;
      const link = $(`[data-go="${CSS.escape(key)}"]`);
      if (link) link.click();
      return Boolean(link);
    }
    if (key === "?") { if (keys) keys.showModal(); return true; }
    if (key === "g") { going = true; return true; }
    if (annotate && /^[1-9]$/.test(key)) return choose(Number(key));
    if (annotate && key === "Enter" && !event.target.closest("a, button, summary")) { annotate.requestSubmit(); return true; }
    if (step) {
      const ranged = event.target.matches("input[type=range]");
      const radio = event.target.matches("input[type=radio]");
      if (!radio && (key === "ArrowRight" || key === "j") && !(ranged && key !== "j")) { step.by(1); return true; }
      if (!radio && (key === "ArrowLeft" || key === "k") && !(ranged && key !== "k")) { step.by(-1); return true; }
      if (key === "Home") { step.to(0); return true; }
      if (key === "End") { step.to(step.last); return true; }
      if (key === "v") { step.toggle(); return true; }
    } else {
      if (key === "j" || key === "ArrowDown") return move(1);
      if (key === "k" || key === "ArrowUp") return current >= 0 && move(-1);
    }
    if (key === "t") {
      const folded = $$(".turn details, .pair details");
      const open = folded.some((item) => !item.open);
      folded.forEach((item) => { item.open = open; });
      return true;
    }
    if (key === "e") { const box = $("[data-follow]"); if (box) box.click(); return Boolean(box); }
    if (key === "x") {
      const row = rows()[current];
      const box = row && $("input[name=pick]", row);
      if (box) box.click();
      return Boolean(box);
    }
    const field = $(`[data-focus="${CSS.escape(key)}"]`);
    if (field) { field.focus(); return true; }
    const target = $(`[data-key="${CSS.escape(key)}"]`);
    if (target) { target.click(); return true; }
    return false;
  };
})();
