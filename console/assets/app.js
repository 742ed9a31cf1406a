// What pages do beyond their links and forms: times in the viewer's zone, charts
// that can be read off, and live updates. Each page works without it.
"use strict";
(function () {
  const lang = document.documentElement.lang || "en";
  const body = document.body;
  // Chinese readers write 2026-11-28 14:11:01, as Swedish does.
  const local = lang === "zh" ? new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" }) : new Intl.DateTimeFormat(lang, { dateStyle: "medium", timeStyle: "medium" });

  function times(root) {
    for (const el of root.querySelectorAll("time[datetime]")) {
      const at = new Date(el.dateTime);
      if (!isNaN(at)) el.textContent = local.format(at);
    }
  }

  // Charts: the figures come as JSON in attributes; without this script there is the table.
  const colours = ["--c-atonce", "--c-sync", "--c-job", "--c-pending", "--c-parked"];
  let drawn = [];
  function charts(root) {
    if (!window.uPlot) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    for (const el of root.querySelectorAll(".plot[data-x]")) {
      if (drawn.some((d) => d.el === el)) continue;
      const x = JSON.parse(el.dataset.x), y = JSON.parse(el.dataset.y), names = JSON.parse(el.dataset.names);
      const stacked = y.map((_, i) => x.map((_, k) => y.slice(0, i + 1).reduce((sum, s) => sum + s[k], 0)));
      const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--c-grid"), width: 1 }, ticks: { stroke: colour("--c-grid") } };
      const long = x[x.length - 1] - x[0] > 86400;
      const clock = new Intl.DateTimeFormat(lang, long ? { weekday: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit" });
      const bars = window.uPlot.paths.bars({ size: [0.8, 24] });
      const series = y.map((values, i) => ({
        label: names[i], fill: colour(colours[i]), stroke: colour(colours[i]), width: 0, paths: bars, points: { show: false },
        value: (_, v, s, k) => (k == null ? "–" : String(y[i][k])),
      }));
      const plot = new window.uPlot({
        width: Math.max(el.clientWidth, 200), height: 110, padding: [8, 36, 0, 0], legend: { show: false }, cursor: { drag: { x: false, y: false }, points: { show: false } },
        scales: { y: { range: (_, min, max) => [0, Math.max(max, 1)] } },
        axes: [Object.assign({ size: 32, space: 72, values: (_, at) => at.map((s) => clock.format(new Date(s * 1000))) }, axis), Object.assign({ size: 48 }, axis)],
        series: [{}].concat(series.slice().reverse()),
        hooks: { setCursor: [(u) => tip(el, u.cursor.idx, x, y, names)] },
      }, [x].concat(stacked.slice().reverse()), el);
      drawn.push({ el, plot, figures: figures(el) });
    }
  }
  function figures(el) { return el.dataset.x + el.dataset.y + el.dataset.names; }
  function tip(el, i, x, y, names) {
    const at = el.parentElement.querySelector("figcaption .quiet");
    if (!at) return;
    if (at.dataset.text === undefined) at.dataset.text = at.textContent;
    at.textContent = i == null ? at.dataset.text
      : local.format(new Date(x[i] * 1000)) + " · " + names.map((n, k) => n + " " + y[k][i]).join(" · ");
  }
  // redraw draws the charts anew whose figures have changed, or all of them.
  function redraw(all) {
    drawn = drawn.filter((d) => {
      if (!all && d.el.isConnected && figures(d.el) === d.figures) return true;
      d.plot.destroy();
      return false;
    });
    charts(document);
  }
  let resizing;
  window.addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => redraw(true), 150); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(true));

  // Live updates: the server says that something changed, and the page asks for
  // itself. A hidden tab holds no connection; who wants peace pauses.
  let source = null, paused = false, missed = false;
  function live() { return document.querySelector("#live[hx-get], #live[data-again]"); }
  function open() {
    if (source || paused || document.hidden || !live()) return;
    heard = Date.now();
    source = new EventSource(body.dataset.events);
    source.addEventListener("changed", update);
    source.addEventListener("pulse", (e) => {
      heard = Date.now();
      if (e.data === "down") { away = true; outdated("log"); return; }
      if ((outdatedBy || live() && live().hasAttribute("data-again")) && !asked) update();
      away = false;
    });
    source.addEventListener("error", () => {
      if (!source || source.readyState !== EventSource.CLOSED) return; // it connects again
      close();
      outdated("other");
      setTimeout(open, 3000);
    });
  }
  function close() { if (source) { source.close(); source = null; } }
  function update() {
    if (!live()) { close(); return; }
    if (paused || document.hidden) { missed = true; return; }
    missed = false;
    if (held()) { later(); return; }
    if (live().hasAttribute("data-again")) {
      if (away || Date.now() - asOf > 15000) location.reload();
      return;
    }
    window.htmx.trigger(body, "bed:changed");
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { close(); missed = true; return; }
    open();
    if (missed && live()) update();
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);

  // A page whose updates fail says so, and since when: the server is heard each second,
  // and who hears nothing, or waits for an update, for patience is out of date.
  const patience = 4000;
  const ago = new Intl.RelativeTimeFormat(lang);
  let note = null, heard = 0, away = false, asked = 0, outdatedBy = "", asOf = Date.now();
  function outdated(why) {
    if (!live() || live().hasAttribute("data-again")) return; // it says so itself
    outdatedBy = why;
    said();
  }
  function said() {
    const place = document.getElementById("outdated");
    if (!place) return;
    body.classList.toggle("outdated", outdatedBy !== "");
    place.hidden = outdatedBy === "";
    const [why, when] = place.children, text = outdatedBy && body.dataset[outdatedBy];
    if (why.textContent !== text) why.textContent = text; // once: it is read aloud
    when.textContent = outdatedBy && shownAsOf();
  }
  function shownAsOf() {
    const s = Math.round((Date.now() - asOf) / 1000);
    const age = s < 120 ? ago.format(-s, "second") : s < 7200 ? ago.format(-Math.floor(s / 60), "minute") : ago.format(-Math.floor(s / 3600), "hour");
    return body.dataset.asOf.replace("%s", local.format(new Date(asOf))).replace("%s", age);
  }
  function fresh() {
    // What was done was read by now, and what becomes of it may not fit it any more.
    const parked = document.querySelector("h1 .state.parked");
    for (const done of document.querySelectorAll(".flash.ok")) if (performance.now() > 8000 || parked && done.matches(".retry")) done.remove();
    asOf = Date.now();
    outdatedBy = "";
    said();
  }
  setInterval(() => {
    if (outdatedBy) said();
    if (note) note.textContent = paused ? shownAsOf() : "";
    if (paused || document.hidden || !live()) return;
    const now = Date.now();
    if (source && now - heard > patience) outdated("console");
    else if (asked && now - asked > patience) outdated(away ? "log" : "console");
  }, 250);
  body.addEventListener("htmx:beforeRequest", () => { asked = asked || Date.now(); });
  body.addEventListener("htmx:afterRequest", (e) => {
    asked = 0;
    const status = e.detail.xhr ? e.detail.xhr.status : 0;
    if (!e.detail.successful && status !== 404) outdated(status === 503 ? "log" : status ? "other" : "console");
  });

  // An update waits while a button of the pointer is down, and for a moment after the
  // pointer was moved to something that can be pressed: what is being aimed at stays where
  // it is.
  const aiming = 1500;
  let down = -Infinity, until = 0, waiting = 0;
  function held() { return performance.now() < Math.max(until, down + 60000); }
  function later() {
    if (waiting) return;
    waiting = setTimeout(() => { waiting = 0; update(); }, Math.max(until - performance.now(), 100));
  }
  const aims = { capture: true, passive: true };
  document.addEventListener("pointermove", (e) => {
    if (e.target instanceof Element && e.target.closest("a, button, summary, label, input, select")) until = performance.now() + aiming;
  }, aims);
  document.addEventListener("pointerdown", () => { down = performance.now(); until = down + aiming; }, aims);
  for (const end of ["pointerup", "pointercancel", "dragend"]) document.addEventListener(end, () => { down = -Infinity; }, aims);
  window.addEventListener("blur", () => { down = -Infinity; });

  body.addEventListener("htmx:beforeSwap", (e) => {
    // What is not in the log any more is worth showing.
    if (e.detail.xhr.status === 404) { e.detail.shouldSwap = true; e.detail.isError = false; }
    if (held()) { e.detail.shouldSwap = false; later(); }
  });

  // What has not changed stays as it is, with its focus and its selection: only the
  // differences are brought in.
  function key(n) {
    if (n.nodeType !== Node.ELEMENT_NODE) return "";
    const within = n.tagName === "TR" || n.tagName === "LI" ? n.querySelector("[id]") : null;
    return n.id || n.getAttribute("aria-labelledby") || (within ? within.id : "");
  }
  function alike(a, b) { return a.nodeName === b.nodeName && key(a) === key(b); }
  // match finds what n was before, at a place or behind it. What has no name is looked for
  // at this place alone.
  function match(at, n) {
    if (n.nodeType !== Node.ELEMENT_NODE) return at && alike(at, n) ? at : null;
    while (at && !alike(at, n) && (key(n) || at.nodeType !== Node.ELEMENT_NODE)) at = at.nextSibling;
    return at && alike(at, n) ? at : null;
  }
  function bring(to, from) {
    if (to.nodeType !== Node.ELEMENT_NODE) {
      if (to.nodeValue !== from.nodeValue) to.nodeValue = from.nodeValue;
      return;
    }
    for (const a of Array.from(to.attributes)) {
      if (!from.hasAttribute(a.name) && !(a.name === "open" && to.tagName === "DETAILS")) to.removeAttribute(a.name);
    }
    for (const a of from.attributes) {
      if (to.getAttribute(a.name) !== a.value) to.setAttribute(a.name, a.value);
    }
    if (drawn.some((d) => d.el === to)) return; // what is in it was drawn here
    let at = to.firstChild;
    for (const n of Array.from(from.childNodes)) {
      const same = match(at, n);
      if (!same) { to.insertBefore(n, at); continue; }
      // What stands between is gone, unless it comes later: then it is made anew.
      while (at !== same) { const gone = at; at = at.nextSibling; gone.remove(); }
      at = at.nextSibling;
      bring(same, n);
    }
    while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
  }
  if (window.htmx) window.htmx.defineExtension("differences", {
    isInlineSwap: (style) => style === "differences",
    handleSwap: (style, target, fragment) => {
      const from = fragment.querySelector("#live");
      if (style !== "differences" || !from) return false;
      times(from);
      bring(target, from);
      redraw(false);
      fresh();
      return true;
    },
  });

  function switcher() {
    const place = document.getElementById("updates");
    if (!place || !live()) return;
    const b = document.createElement("button");
    b.type = "button";
    b.textContent = body.dataset.pause;
    b.addEventListener("click", () => {
      paused = !paused;
      b.textContent = paused ? body.dataset.liveOn : body.dataset.pause;
      if (paused) { close(); } else { open(); update(); }
    });
    note = document.createElement("span");
    place.append(b, " ", note);
  }

  document.addEventListener("DOMContentLoaded", () => {
    times(document);
    const zone = document.getElementById("zone");
    if (zone) zone.textContent = zone.dataset.text.replace("%s", local.resolvedOptions().timeZone);
    charts(document);
    switcher();
    open();
    const trial = document.querySelector(".trial");
    if (trial) trial.focus();
  });
})();
