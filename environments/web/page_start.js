// Runs before any script of a page, and before playwright replaces the page's clock. SEED is replaced by a number for each episode.
(() => {
  // the frames and timers of the browser itself: the page's own are replaced by a clock that stands still
  const frame = window.requestAnimationFrame.bind(window);
  const later = window.setTimeout.bind(window);
  let leaving = 0;
  let said = [];
  addEventListener("beforeunload", () => (leaving = 20), true);
  // the bubble with which the browser itself complains of a field is in no tree, and fades in by the machine's clock
  addEventListener(
    "invalid",
    (event) => {
      event.preventDefault();
      const target = event.target;
      const label = target.labels?.[0]?.textContent || target.getAttribute("aria-label") || target.name || "";
      said.push(`The field "${label.trim().slice(0, 80)}" is not valid: ${target.validationMessage.slice(0, 200)}`);
    },
    true,
  );
  // after a frame, and after the tasks that the last action left: whether another page was asked for, and what was said
  Object.defineProperty(window, "__nextFrame", {
    value: () =>
      new Promise((resolve) =>
        frame(() =>
          later(() => {
            resolve({ leaving: leaving > 0, said });
            leaving -= leaving > 0; // not every address is one of a page
            said = [];
          }, 0),
        ),
      ),
    enumerable: false,
  });
  // mulberry32
  let state = SEED >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return (t ^ (t >>> 14)) >>> 0;
  };
  Math.random = () => next() / 4294967296;
  const fill = (array) => {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    for (let i = 0; i < bytes.length; i++) bytes[i] = next() & 255;
    return array;
  };
  Object.defineProperty(Crypto.prototype, "getRandomValues", { value: fill });
  Object.defineProperty(Crypto.prototype, "randomUUID", {
    value: () => {
      const b = fill(new Uint8Array(16));
      b[6] = (b[6] & 15) | 64;
      b[8] = (b[8] & 63) | 128;
      const h = [...b].map((x) => x.toString(16).padStart(2, "0")).join("");
      return `${h.slice(0, 8)}-${h.slice(8, 12)}-${h.slice(12, 16)}-${h.slice(16, 20)}-${h.slice(20)}`;
    },
  });
  for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection", "WebTransport"]) delete window[name];
})();
