// The charts of the overview. What they show last stands in the figures too, for those who do not see them.
"use strict";
(() => {
  const KEPT = 600, LEAST_S = 60, HEIGHT = 180;
  const from = document.getElementById("points");
  if (!from) return;
  const points = JSON.parse(from.dataset.points);

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const chart = (id, label, at) => {
    const box = document.getElementById(id);
    const axis = { stroke: () => colour("--dim"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { stroke: () => colour("--line"), width: 1 } };
    const made = new uPlot({
      width: box.clientWidth, height: HEIGHT, legend: { show: false }, cursor: { drag: { x: false, y: false } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      scales: { x: { range: (plot, low, high) => { const end = high || Date.now() / 1000; return [Math.min(low || end, end - LEAST_S), end]; } }, y: { range: (plot, low, high) => [0, Math.max(1, (high || 0) * 1.1)] } },
      axes: [{ ...axis, space: 90, values: (plot, ticks) => ticks.map((each) => new Date(each * 1000).toISOString().slice(11, 19)) }, { ...axis, size: 70, values: (plot, ticks) => ticks.map((each) => each.toLocaleString("en")) }],
      series: [{}, { label: label, stroke: () => colour("--accent"), width: 2, points: { show: false }, spanGaps: true }],
    }, data(at), box);
    return made;
  };
  const data = (at) => [points.map((each) => each[0]), points.map((each) => each[at])];

  let draw = () => {};
  document.addEventListener("holdfast-point", (event) => {
    points.push(event.detail);
    if (points.length > KEPT) points.shift();
    draw();
  });
  const begin = () => {
    document.getElementById("charts-section").hidden = false;
    const charts = [[chart("chart-rate", "records a second", 1), 1], [chart("chart-behind", "records behind", 2), 2]];
    draw = () => charts.forEach(([made, at]) => made.setData(data(at)));
    window.addEventListener("resize", () => charts.forEach(([made]) => made.setSize({ width: made.root.parentElement.clientWidth, height: HEIGHT })));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(([made]) => made.redraw(false, true)));
  };

  // What draws them is loaded once the page stands, so that nobody waits for it.
  requestAnimationFrame(() => setTimeout(() => {
    const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: from.dataset.style });
    const script = Object.assign(document.createElement("script"), { src: from.dataset.script, onload: begin });
    document.head.append(style, script);
  }));
})();
