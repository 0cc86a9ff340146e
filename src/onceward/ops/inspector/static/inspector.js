// Live pages, charts and keys. Without this file every page still answers.
"use strict";
(() => {
  const page = () => document.getElementById("page");
  const UNITS = [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]];
  const age = (millis) => {
    if (millis < 1000) return "0 s";
    const [size, unit] = UNITS.find(([size]) => millis >= size);
    return `${Math.floor(millis / size)} ${unit}`;
  };
  // The server's clock, as far as the page tells it: ages are by that one.
  const ahead = Number(page().dataset.now) - Date.now();
  const tick = () => {
    const now = Date.now() + ahead;
    for (const time of document.querySelectorAll("time[data-at]")) {
      time.textContent = age(now - Number(time.dataset.at));
    }
  };

  // -- live ------------------------------------------------------------------------------
  const button = document.getElementById("live");
  const KEY = "onceward-paused";
  let source = null, waiting = false, last = 0;
  const paused = () => sessionStorage.getItem(KEY) === "1";
  const refresh = () => {
    if (waiting || paused() || document.hidden) return;
    waiting = true;
    setTimeout(() => {
      waiting = false;
      if (paused() || document.hidden || busy()) return;
      last = Date.now();
      page().dispatchEvent(new CustomEvent("refresh"));
      draw();
    }, Math.max(0, 1000 - (Date.now() - last)));
  };
  const busy = () => {  // a field of the page that is being filled in is left alone
    const active = document.activeElement;
    return active && page().contains(active) && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName);
  };
  const connect = () => {
    if (source || paused() || document.hidden) return;
    const keys = JSON.parse(page().dataset.keys).map((key) => ["key", key]);
    source = new EventSource(`/events?${new URLSearchParams(keys)}`);
    source.addEventListener("changed", (event) => {
      const changed = JSON.parse(event.data), mine = JSON.parse(page().dataset.keys);
      if (!changed || !mine.length || mine.some((key) => changed.includes(key))) refresh();
    });
    source.onopen = () => show(true);
    source.onerror = () => show(false);
  };
  const disconnect = () => { source?.close(); source = null; };
  const show = (connected) => {
    button.setAttribute("aria-pressed", String(connected && !paused()));
    button.querySelector(".word").textContent = paused() ? "paused" : connected ? "live" : "away";
    const word = button.querySelector(".word").textContent;  // its name begins with what it shows
    button.setAttribute("aria-label", paused() ? `${word}: show changes as they come` : `${word}: pause`);
  };
  const toggle = () => {
    sessionStorage.setItem(KEY, paused() ? "0" : "1");
    show(!paused());
    if (paused()) { disconnect(); } else { connect(); refresh(); }
  };
  if (page().hasAttribute("hx-get")) {
    button.hidden = false;
    button.addEventListener("click", toggle);
    show(false);
    connect();
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { disconnect(); } else { connect(); refresh(); }
    });
    window.addEventListener("pagehide", disconnect);
    window.addEventListener("pageshow", connect);  // back from the cache of the browser
  }

  // -- charts ----------------------------------------------------------------------------
  const plots = new WeakMap();
  const colour = (name) => {  // a canvas knows no light-dark(): ask an element that does
    const probe = document.createElement("i");
    probe.className = `probe ${name}`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const options = (box) => {
    const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const series = ["sent", "received", "handled"].map((name) => ({
      label: name, stroke: colour(name), width: 1.5, points: { show: false },
    }));
    return {
      width: box.clientWidth, height: 110, tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      legend: { show: false }, cursor: { show: false }, padding: [8, 22, 0, 0],
      scales: { y: { range: (_, low, high) => [0, Math.max(4, high * 1.1)] } },
      axes: [{ ...axis, size: 22, values: "{HH}:{mm}" }, { ...axis, size: (_, texts) => 14 + 7 * Math.max(2, ...(texts ?? []).map((text) => String(text ?? "").length)), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 1000000], space: 26 }],
      series: [{}, ...series],
    };
  };
  const draw = async (fresh = false) => {
    for (const box of document.querySelectorAll(".plot")) {
      const answer = await fetch(box.dataset.src).catch(() => null);  // away: the button says so
      if (!answer?.ok) continue;
      const { times, series } = await answer.json();
      if (!times.length) continue;
      const known = plots.get(box);
      if (known && !fresh) { known.setData([times, ...series]); continue; }
      known?.destroy();
      plots.set(box, new uPlot(options(box), [times, ...series], box));
    }
  };
  let sized = 0;
  window.addEventListener("resize", () => {
    clearTimeout(sized);
    sized = setTimeout(() => {
      for (const box of document.querySelectorAll(".plot")) plots.get(box)?.setSize({ width: box.clientWidth, height: 110 });
    }, 150);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true));
  draw();
  setInterval(tick, 1000);

  // -- colours ---------------------------------------------------------------------------
  document.getElementById("theme").addEventListener("click", async (event) => {
    event.preventDefault();
    await fetch(event.currentTarget.href, { redirect: "manual" }).catch(() => null);
    location.reload();
  });

  // -- keys ------------------------------------------------------------------------------
  const move = (step) => {
    const rows = [...document.querySelectorAll("main a.row")].filter((row) => row.offsetParent);
    const at = rows.indexOf(document.activeElement);
    rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + step))]?.focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (typing) { if (event.key === "Escape") event.target.blur(); return; }
    const does = { "/": () => document.getElementById("search").focus(), j: () => move(1), k: () => move(-1), p: () => !button.hidden && toggle() }[event.key];
    if (does) { event.preventDefault(); does(); }
  });
})();
