// A table that is wider than the screen scrolls: a reader without a pointer must be able to reach it.
new MutationObserver(() => {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) each.tabIndex = 0;
}).observe(document.body, { childList: true, subtree: true });
