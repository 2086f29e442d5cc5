// The size of the part of the window, from its upper left corner, that has the task: 160x210, and whole tens of pixels
// more where something is drawn outside, such as a long list of suggestions.
() => {
  const STEP = 10;
  const CONTROLS = /^(IMG|CANVAS|INPUT|BUTTON|SELECT|TEXTAREA)$/;
  const drawn = (element) => {
    if (element instanceof SVGElement) return element.tagName !== "svg";
    if (CONTROLS.test(element.tagName)) return true;
    const style = getComputedStyle(element);
    if (style.backgroundColor !== "rgba(0, 0, 0, 0)" || style.backgroundImage !== "none") return true;
    return [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  };
  let width = 160, height = 210;
  for (let y = STEP / 2; y < innerHeight; y += STEP)
    for (let x = STEP / 2; x < innerWidth; x += STEP) {
      if (x < width && y < height) continue;
      const element = document.elementFromPoint(x, y);
      if (!element || element === document.body || element === document.documentElement || !drawn(element)) continue;
      width = Math.max(width, x + STEP / 2);
      height = Math.max(height, y + STEP / 2);
    }
  return [width, height];
};
