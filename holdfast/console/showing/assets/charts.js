// The charts of the overview. What they show last stands in the figures too, for those who do not see them.
"use strict";
(() => {
  const KEPT = 600;
  const from = document.getElementById("points");
  if (!from || !window.uPlot) return;
  const points = JSON.parse(from.dataset.points);
  document.getElementById("charts-section").hidden = false;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const chart = (id, label, at) => {
    const box = document.getElementById(id);
    const axis = { stroke: () => colour("--dim"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { stroke: () => colour("--line"), width: 1 } };
    const made = new uPlot({
      width: box.clientWidth, height: 180, legend: { show: false }, cursor: { drag: { x: false, y: false } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      scales: { y: { range: (plot, low, high) => [0, Math.max(1, (high || 0) * 1.1)] } },
      axes: [{ ...axis, space: 90, values: (plot, ticks) => ticks.map((each) => new Date(each * 1000).toISOString().slice(11, 19)) }, { ...axis, size: 70, values: (plot, ticks) => ticks.map((each) => each.toLocaleString("en")) }],
      series: [{}, { label: label, stroke: () => colour("--accent"), width: 2, points: { show: false }, spanGaps: true }],
    }, data(at), box);
    return () => { made.setData(data(at)); };
  };
  const data = (at) => [points.map((each) => each[0]), points.map((each) => each[at])];

  const draw = [chart("chart-rate", "records a second", 1), chart("chart-behind", "records behind", 2)];
  document.addEventListener("holdfast-point", (event) => {
    points.push(event.detail);
    if (points.length > KEPT) points.shift();
    draw.forEach((each) => each());
  });
})();
