// Small plots: one line, and the area below it.

import { svg } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 28;

// `values` from old to new; `most` is the top of the plot, if it is known.
export function plot(values, { most, label, wide = false } = {}) {
  const top = Math.max(most ?? 0, ...values, 1e-9);
  const step = WIDTH / Math.max(values.length - 1, 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${(HEIGHT - 1 - (value / top) * (HEIGHT - 3)).toFixed(1)}`);
  const picture = svg("svg", { class: wide ? "plot wide" : "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  if (points.length > 1) {
    picture.append(
      svg("polygon", { points: `0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`, class: "area" }),
      svg("polyline", { points: points.join(" "), class: "line" }),
    );
  } else {
    picture.append(svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1, class: "none" }));
  }
  return picture;
}

// What a box used, from points of [when, processor ms, memory, processes]: percent of one processor, and memory.
export function used(usage) {
  const cpu = [];
  for (let at = 1; at < usage.length; at += 1) {
    const [before, spent] = usage[at - 1];
    const [now, total] = usage[at];
    cpu.push(Math.max(0, ((total - spent) / Math.max(now - before, 1)) * 100));
  }
  const last = usage.at(-1);
  return { cpu, memory: usage.map((point) => point[2]), processes: last?.[3] ?? null };
}

export function percent(value) {
  return value === undefined ? "–" : `${value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}
