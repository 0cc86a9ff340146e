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
  let source = null, waiting = false, last = 0, away = 0;
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
    source = new EventSource(`${page().dataset.events}?${new URLSearchParams(keys)}`);
    source.addEventListener("changed", (event) => {
      const changed = JSON.parse(event.data), mine = JSON.parse(page().dataset.keys);
      if (!changed || !mine.length || mine.some((key) => changed.includes(key))) refresh();
    });
    source.onopen = () => { clearTimeout(away); away = 0; show(true); };
    source.onerror = () => { away ||= setTimeout(() => show(false), 3000); };  // unless it opens again
  };
  const disconnect = () => { source?.close(); source = null; clearTimeout(away); away = 0; };
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
  const NAMES = ["sent", "received", "handled"];
  const STEPS = Array.from({ length: 8 }, (_, power) => [1, 2, 5].map((first) => first * 10 ** power)).flat();
  const clock = (at, span) => new Date(at * 1000).toISOString().slice(span >= 1800 ? 5 : 11, 16).replace("T", " ");
  // The values under the pointer stand in the caption, beside the names of the series.
  const tell = (box, plot) => {
    const caption = box.parentElement.querySelector("figcaption"), at = plot.cursor.idx;
    const known = plots.get(box);
    const told = known && at != null && plot.cursor.left >= 0;
    caption.querySelectorAll(".key b").forEach((value, n) => {
      value.textContent = told ? known.series[n][at].toLocaleString("en") : "";
    });
    caption.querySelector(".at").textContent = told ? `at ${clock(known.times[at], known.span)}` : "";
  };
  const options = (box, span) => {
    const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const bars = uPlot.paths.bars({ size: [0.8, 60], align: 1 });
    const series = NAMES.map((name) => ({
      label: name, fill: colour(name), stroke: colour(name), width: 0, paths: bars, points: { show: false },
    }));
    return {
      width: box.clientWidth, height: 110, tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      legend: { show: false }, padding: [8, 22, 0, 0],
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
      scales: { x: { range: (_, low, high) => [low, high === low ? high + span : high] }, y: { range: (_, low, high) => [0, Math.max(4, high * 1.1)] } },
      axes: [{ ...axis, size: 22, values: span >= 1800 ? "{MM}-{DD} {HH}:{mm}" : "{HH}:{mm}", space: span >= 1800 ? 90 : 50 }, { ...axis, size: (_, texts) => 14 + 7 * Math.max(2, ...(texts ?? []).map((text) => String(text ?? "").length)), incrs: STEPS, space: 26 }],
      series: [{}, ...series],
      hooks: {
        setCursor: [(plot) => tell(box, plot)],
        setScale: [(plot, key) => key === "x" && zoomed(box, plot)],
      },
    };
  };
  // A drag shows a part of the range, which live values leave as it is, until the button is pressed.
  const zoomed = (box, plot) => {
    const known = plots.get(box), button = box.parentElement.querySelector(".whole");
    if (!known) return;
    const { min, max } = plot.scales.x, [first, last] = whole(known);
    button.hidden = min <= first && max >= last;
  };
  const whole = (known) => [known.times[0], known.times.at(-1) + known.span];
  // Each series stands on those after it: the first one drawn is the sum of all.
  const stacked = (series) => series.map((_, n) => series[n].map((_, at) => series.slice(n).reduce((sum, each) => sum + each[at], 0)));
  const draw = async (fresh = false) => {
    for (const box of document.querySelectorAll(".plot")) {
      const answer = await fetch(box.dataset.src).catch(() => null);  // away: the button says so
      if (!answer?.ok) continue;
      const { times, span, series } = await answer.json();
      if (!times.length) continue;
      const before = plots.get(box), button = box.parentElement.querySelector(".whole");
      const known = { times, span, series, plot: before?.plot };
      const data = [times, ...stacked(series)];
      plots.set(box, known);
      if (known.plot && !fresh) {
        known.plot.setData(data, false);
        if (button.hidden) showWhole(known);
        else known.plot.redraw();
        continue;
      }
      known.plot?.destroy();
      known.plot = new uPlot(options(box, span), data, box);
      showWhole(known);
      button.onclick = () => showWhole(plots.get(box));
    }
  };
  const showWhole = (known) => {
    const [min, max] = whole(known);
    known.plot.setScale("x", { min, max });
  };
  let sized = 0;
  window.addEventListener("resize", () => {
    clearTimeout(sized);
    sized = setTimeout(() => {
      for (const box of document.querySelectorAll(".plot")) plots.get(box)?.plot.setSize({ width: box.clientWidth, height: 110 });
    }, 150);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true));
  draw();
  setInterval(tick, 1000);

  // -- copy ------------------------------------------------------------------------------
  const offer = () => {
    const text = document.getElementById("text");
    if (!text || !navigator.clipboard || document.querySelector(".copy")) return;
    const copy = document.createElement("button");
    copy.type = "button"; copy.className = "copy"; copy.textContent = "Copy";
    copy.addEventListener("click", async () => {
      const done = await navigator.clipboard.writeText(text.textContent).then(() => true, () => false);
      copy.textContent = done ? "Copied" : "Not copied";
      setTimeout(() => { copy.textContent = "Copy"; }, 2000);
    });
    text.closest(".body").prepend(copy);
  };
  offer();
  document.body.addEventListener("htmx:after:swap", offer);

  // -- times -----------------------------------------------------------------------------
  const zone = document.createElement("button");
  const ZONE = "onceward-zone";
  const local = () => localStorage.getItem(ZONE) === "local";
  const two = (number, width = 2) => String(number).padStart(width, "0");
  const told = (at, here) => {  // as the server writes them, in one zone or the other
    const get = (name) => at[`get${here ? "" : "UTC"}${name}`]();
    const day = `${get("FullYear")}-${two(get("Month") + 1)}-${two(get("Date"))}`;
    const clock = `${two(get("Hours"))}:${two(get("Minutes"))}:${two(get("Seconds"))}`;
    return { clock: `${clock}.${two(get("Milliseconds"), 3)}`, when: `${day} ${clock}`, title: `${day} ${clock}.${two(get("Milliseconds"), 3)} ${here ? zoneName : "UTC"}` };
  };
  const zoneName = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const times = (root = document) => {
    zone.textContent = local() ? `times are local (${zoneName})` : "times are UTC";
    zone.title = local() ? "Show UTC" : "Show local times";
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.valueOf())) continue;
      const texts = told(at, local());
      time.title = texts.title;
      if (time.dataset.show) time.textContent = texts[time.dataset.show];
    }
  };
  zone.type = "button";
  zone.addEventListener("click", () => { localStorage.setItem(ZONE, local() ? "utc" : "local"); times(); });
  document.getElementById("zone").replaceChildren(zone);
  times();
  document.body.addEventListener("htmx:after:swap", () => times());

  // -- filters ---------------------------------------------------------------------------
  const complete = (field) => {  // the last word is completed, those before it are kept
    const list = document.getElementById(field.getAttribute("list"));
    const words = JSON.parse(field.dataset.words);
    field.addEventListener("input", () => {
      const [, before, last] = /^(.*?)([^ ]*)$/s.exec(field.value);
      const fit = words.filter((word) => word.startsWith(last) && word !== last).slice(0, 12);
      list.replaceChildren(...fit.map((word) => Object.assign(document.createElement("option"), { value: before + word })));
    });
  };
  document.querySelectorAll("input[data-words]").forEach(complete);

  // -- selection -------------------------------------------------------------------------
  const boxes = () => [...document.querySelectorAll('input[name="id"][form="chosen"]')];
  const select = () => {
    const bar = document.getElementById("chosen");
    if (!bar) return;
    const count = boxes().filter((box) => box.checked).length;
    for (const box of boxes()) box.closest("tr").classList.toggle("picked", box.checked);
    bar.querySelector(".chosen").textContent = `${count} selected`;
    bar.classList.toggle("none", !count);
    for (const button of bar.querySelectorAll("button[formaction]")) button.disabled = !count;
  };
  const all = () => {
    const head = document.querySelector("thead .pick");
    if (!head || head.querySelector("input")) return;
    const box = Object.assign(document.createElement("input"), { type: "checkbox", ariaLabel: "Select all on this page" });
    box.addEventListener("change", () => { boxes().forEach((each) => { each.checked = box.checked; }); select(); });
    head.replaceChildren(box);
  };
  document.addEventListener("change", (event) => { if (event.target.form?.id === "chosen") select(); });
  all(); select();
  document.body.addEventListener("htmx:after:swap", () => { all(); select(); });

  // -- drawer ----------------------------------------------------------------------------
  const drawer = document.createElement("aside");
  drawer.className = "drawer"; drawer.hidden = true; drawer.tabIndex = -1; drawer.setAttribute("aria-label", "Message");
  document.body.append(drawer);
  let shown = null;
  const close = () => {
    drawer.hidden = true; drawer.replaceChildren();
    shown?.classList.remove("open"); shown?.focus(); shown = null;
  };
  const open = async (link) => {
    shown?.classList.remove("open");
    shown = link; link.classList.add("open");
    const answer = await fetch(link.href).catch(() => null);
    if (shown !== link) return;  // another one was opened meanwhile
    if (!answer?.ok) { location.href = link.href; return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("page");
    const whole = Object.assign(document.createElement("a"), { href: link.href, className: "button", textContent: "Open its page" });
    const shut = Object.assign(document.createElement("button"), { type: "button", textContent: "Close" });
    const hint = Object.assign(document.createElement("span"), { className: "soft", textContent: "j k next, Enter page, Esc closes" });
    const head = document.createElement("div");
    head.className = "drawer-head"; head.append(shut, whole, hint);
    shut.addEventListener("click", close);
    for (const each of page.querySelectorAll("[id]")) if (each.id !== "text") each.removeAttribute("id");
    for (const each of page.querySelectorAll("[aria-labelledby]")) each.removeAttribute("aria-labelledby");
    for (const each of page.querySelectorAll("a.row")) each.classList.remove("row");
    drawer.replaceChildren(head, ...page.childNodes);
    drawer.hidden = false; drawer.scrollTop = 0;
    times(drawer); offer();
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-drawer]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    if (link === shown) return;  // the second time it opens the page
    event.preventDefault();
    open(link);
  });

  // -- keys ------------------------------------------------------------------------------
  const move = (step) => {
    const rows = [...document.querySelectorAll("main a.row")].filter((row) => row.offsetParent);
    const at = rows.indexOf(document.activeElement);
    const next = rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + step))];
    next?.focus();
    if (shown && next && next !== shown && next.hasAttribute("data-drawer")) open(next);
  };
  const pick = () => {
    const box = document.activeElement?.closest("tr")?.querySelector('input[name="id"]');
    if (box) { box.checked = !box.checked; select(); }
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (typing) { if (event.key === "Escape") event.target.blur(); return; }
    const does = { "/": () => document.getElementById("search").focus(), j: () => move(1), k: () => move(-1), x: pick, Escape: () => shown && close(), p: () => !button.hidden && toggle() }[event.key];
    if (does) { event.preventDefault(); does(); }
  });
})();
