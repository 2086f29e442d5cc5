// Begins the episode of a page that has loaded, and returns what is asked for in words.
(seed) => {
  const style = document.createElement("style");
  // scores, the clock, the trace of clicks, and the cover whose click would begin another episode
  style.textContent = "#reward-display, #click-canvas, #sync-task-cover { display: none !important; }";
  document.head.appendChild(style);
  Math.seedrandom(seed);
  core.EPISODE_MAX_TIME = 2000000000; // longer than the page's clock runs: it moves with actions only
  core.startEpisodeReal();
  window.__begun = true;
  const asked = core.getUtterance();
  return typeof asked === "string" ? asked : asked.utterance;
};
