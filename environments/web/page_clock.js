// Runs after playwright has replaced the page's clock. STARTED_AT is replaced by the first moment, in ms since 1970.
(() => {
  // what the replaced clock derives from its ticks: they begin with the real time between two of its own calls
  performance.now = () => Date.now() - STARTED_AT;
  const later = window.setTimeout;
  const never = window.clearTimeout;
  window.requestAnimationFrame = (callback) => later(() => callback(performance.now()), 16 - (Date.now() % 16));
  window.cancelAnimationFrame = (id) => never(id);
  // what it leaves as it is
  Object.defineProperty(Performance.prototype, "timeOrigin", { get: () => STARTED_AT });
  Object.defineProperty(Event.prototype, "timeStamp", { get: () => performance.now() });
  Object.defineProperty(Document.prototype, "lastModified", { get: () => "06/15/2025 15:06:40" });
})();
