// Whether the episode is over, and the page's reward without its discount for time. null: this is another page by now.
() => (window.__begun ? [WOB_DONE_GLOBAL, Number(WOB_RAW_REWARD_GLOBAL)] : null);
