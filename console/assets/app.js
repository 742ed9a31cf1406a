// What pages do beyond their links and forms: times in the viewer's zone, charts
// that can be read off, and live updates. Each page works without it.
"use strict";
(function () {
  const lang = document.documentElement.lang || "en";
  const body = document.body;
  const local = new Intl.DateTimeFormat(lang, { dateStyle: "medium", timeStyle: "medium" });

  function times(root) {
    for (const el of root.querySelectorAll("time[datetime]")) {
      const at = new Date(el.dateTime);
      if (!isNaN(at)) el.textContent = local.format(at);
    }
  }

  // Charts: the figures come as JSON in attributes; the SVG beneath is for those
  // without this script.
  const colours = ["--c-atonce", "--c-sync", "--c-job", "--c-pending", "--c-parked"];
  let drawn = [];
  function charts(root) {
    if (!window.uPlot) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    for (const el of root.querySelectorAll(".plot[data-x]")) {
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
      el.replaceChildren();
      const plot = new window.uPlot({
        width: Math.max(el.clientWidth, 200), height: 150, padding: [8, 24, 0, 0], legend: { show: false }, cursor: { drag: { x: false, y: false }, points: { show: false } },
        scales: { y: { range: (_, min, max) => [0, Math.max(max, 1)] } },
        axes: [Object.assign({ size: 32, values: (_, at) => at.map((s) => clock.format(new Date(s * 1000))) }, axis), Object.assign({ size: 48 }, axis)],
        series: [{}].concat(series.slice().reverse()),
        hooks: { setCursor: [(u) => tip(el, u.cursor.idx, x, y, names)] },
      }, [x].concat(stacked.slice().reverse()), el);
      drawn.push({ el, plot });
    }
  }
  function tip(el, i, x, y, names) {
    const at = el.parentElement.querySelector("figcaption .quiet");
    if (!at) return;
    if (at.dataset.text === undefined) at.dataset.text = at.textContent;
    at.textContent = i == null ? at.dataset.text
      : local.format(new Date(x[i] * 1000)) + " · " + names.map((n, k) => n + " " + y[k][i]).join(" · ");
  }
  function redraw() {
    drawn = drawn.filter((d) => d.el.isConnected);
    for (const d of drawn) { d.plot.destroy(); }
    drawn = [];
    charts(document);
  }
  let resizing;
  window.addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(redraw, 150); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // Live updates: the server says that something changed, and the page asks for
  // itself. A hidden tab holds no connection; who wants peace pauses.
  let source = null, paused = false, missed = false;
  function live() { return document.querySelector("#live[hx-get]"); }
  function open() {
    if (source || paused || document.hidden || !live()) return;
    source = new EventSource(body.dataset.events);
    source.addEventListener("changed", update);
  }
  function close() { if (source) { source.close(); source = null; } }
  function update() {
    if (paused || document.hidden) { missed = true; return; }
    missed = false;
    window.htmx.trigger(body, "bed:changed");
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { close(); missed = true; return; }
    open();
    if (missed && live()) update();
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);

  let openDetails = [];
  body.addEventListener("htmx:beforeSwap", (e) => {
    // What is not in the log any more is worth showing.
    if (e.detail.xhr.status === 404) { e.detail.shouldSwap = true; e.detail.isError = false; }
    openDetails = Array.from(document.querySelectorAll("#live details[open][id]"), (d) => d.id);
  });
  body.addEventListener("htmx:afterSwap", () => {
    for (const id of openDetails) { const d = document.getElementById(id); if (d) d.open = true; }
    times(document);
    redraw();
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
    place.append(b);
  }

  document.addEventListener("DOMContentLoaded", () => {
    times(document);
    charts(document);
    switcher();
    open();
    const trial = document.querySelector(".trial");
    if (trial) trial.focus();
  });
})();
