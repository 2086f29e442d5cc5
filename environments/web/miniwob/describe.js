// Gives elements that have no text a description in the accessibility tree: what it is, its color, size and middle.
// Colored boxes, drawn shapes, icons and the handles of sliders would not be in it otherwise.
() => {
  const COLORS = {
    "0,0,0": "black", "255,255,255": "white", "255,0,0": "red", "0,128,0": "green", "0,255,0": "lime",
    "0,0,255": "blue", "255,255,0": "yellow", "0,255,255": "cyan", "255,0,255": "magenta", "128,128,128": "grey",
    "128,0,128": "purple", "255,165,0": "orange", "255,192,203": "pink", "128,128,0": "olive", "165,42,42": "brown",
  };
  const OF_THEMES = /^ui-(corner|state|widget|helper)/;
  const color = (text) => {
    const found = text.match(/^rgba?\((\d+), (\d+), (\d+)(?:, ([\d.]+))?\)$/);
    if (!found || found[4] === "0") return "";
    const [r, g, b] = found.slice(1, 4).map(Number);
    return COLORS[[r, g, b]] || "#" + [r, g, b].map((part) => part.toString(16).padStart(2, "0")).join("");
  };
  const words = (element, style, drawn) => {
    const all = [drawn ? element.tagName : "", element.id, ...element.classList];
    const named = [...new Set(all)].filter((word) => word && !OF_THEMES.test(word));
    const filled = color(drawn ? style.fill : style.backgroundColor);
    const outline = drawn && !filled ? color(style.stroke) : "";
    const box = element.getBoundingClientRect();
    const place = `${Math.round(box.width)}x${Math.round(box.height)} at ${Math.round(box.x + box.width / 2)},${Math.round(box.y + box.height / 2)}`;
    return [named.join(" "), filled, outline && `${outline} outline`, place].filter(Boolean).join(", ");
  };
  const clickable = (element) => {
    const events = window.jQuery && jQuery._data && jQuery._data(element, "events");
    return Boolean(element.__onclick || (events && events.click));
  };
  const described = (window.__described = window.__described || new Map());
  const now = new Map();
  for (const element of document.body.querySelectorAll("*")) {
    const drawn = element instanceof SVGElement;
    const control = /^(BUTTON|A)$/.test(element.tagName);
    const leaf = element.children.length === 0 || element.tagName === "text";
    if (!leaf && !control) continue;
    if (drawn ? !(element instanceof SVGGraphicsElement) || /^(svg|tspan)$/.test(element.tagName) : !control && !/^(DIV|SPAN|LI|P|I|B|CANVAS)$/.test(element.tagName)) continue;
    if ((element.hasAttribute("role") || element.hasAttribute("aria-label")) && !described.has(element)) continue;
    if (element.id === "area" || element.closest("[contenteditable]") || element.matches(".ui-dialog-title, .ui-dialog > .ui-resizable-handle")) continue;
    const box = element.getBoundingClientRect();
    if (drawn ? box.width < 1 && box.height < 1 : box.width < 1 || box.height < 1) continue;
    if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    const empty = element.textContent.trim() === "";
    const style = getComputedStyle(element);
    if (control && (element.tagName === "BUTTON" || element.hasAttribute("href"))) {
      if (empty && !element.querySelector("img")) now.set(element, [null, words(element, style, false)]);
    } else if (drawn || empty) {
      if (!element.closest("button, a")) now.set(element, ["img", words(element, style, drawn)]);
    } else if (leaf && clickable(element)) {
      now.set(element, [control || element.matches("[class*=link]") ? "link" : "button", null]);
    }
  }
  for (const [element, [role]] of described)
    if (!now.has(element)) {
      if (role !== null) element.removeAttribute("role");
      element.removeAttribute("aria-label");
    }
  for (const [element, [role, label]] of now) {
    if (role !== null) element.setAttribute("role", role);
    if (label !== null) element.setAttribute("aria-label", label);
    else if (described.has(element)) element.removeAttribute("aria-label");
  }
  window.__described = now;
};
