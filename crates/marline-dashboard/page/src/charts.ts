// Line charts over time with one line per path, and delivery gaps as bands behind them.

import uPlot from "uplot";
import { clock, rate } from "./format";
import type { History, Point } from "./history";

interface Kind {
  title: string;
  of: (point: Point) => number | null;
  show: (value: number) => string;
  /** Draws steps between fixed bounds. */
  stepped?: boolean;
}

const KINDS: Kind[] = [
  { title: "RTT", of: (p) => p.srtt_ms, show: (v) => `${v.toFixed(v < 10 ? 1 : 0)} ms` },
  { title: "Health", of: (p) => p.health, show: (v) => ["unreachable", "degraded", "usable"][v] ?? "", stepped: true },
  { title: "Received", of: (p) => p.receives_bits_per_s, show: rate },
  { title: "Sent", of: (p) => p.sends_bits_per_s, show: rate },
  { title: "Loss (share retransmitted)", of: (p) => p.repeated_percent, show: (v) => `${v.toFixed(v < 10 ? 1 : 0)}%` },
];

/** Colors that color-blind users can distinguish, and dashes for users who see no colors. */
const STROKES = [0, 1, 2, 3, 4, 5].map((n) => `--line-${n}`);
const DASHES: number[][] = [[], [8, 4], [2, 3], [8, 3, 2, 3], [12, 4], [4, 4]];

export const color = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const strokeOf = (index: number): string => color(STROKES[index % STROKES.length]!);
/** CSS class for elements in a line's color. */
export const lineClass = (index: number): string => `line-${index % STROKES.length}`;
export const dash = (index: number): number[] => DASHES[index % DASHES.length]!;

export class Charts {
  span_s = 60;
  private names: string[] = [];
  private plots: uPlot[] = [];
  private figures: HTMLElement[] = [];

  constructor(private readonly into: HTMLElement, private readonly history: History) {
    new ResizeObserver(() => this.resize()).observe(into);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
  }

  draw(): void {
    const names = [...this.history.paths.keys()];
    if (names.join("\n") !== this.names.join("\n") || this.plots.length === 0) {
      this.names = names;
      this.build();
    }
    const end = this.history.at[this.history.at.length - 1] ?? Date.now() / 1e3;
    KINDS.forEach((kind, index) => {
      const plot = this.plots[index]!;
      plot.setData(this.data(kind), false);
      plot.setScale("x", { min: end - this.span_s, max: end });
      this.figures[index]!.querySelector("canvas")?.setAttribute("aria-hidden", "true");
      this.figures[index]!.setAttribute("aria-label", this.words(kind));
    });
  }

  private data(kind: Kind): uPlot.AlignedData {
    const lines = this.names.map((name) =>
      (this.history.paths.get(name) ?? []).map((point) => (point ? kind.of(point) : null)));
    return [this.history.at, ...lines];
  }

  /** Text description of a chart: each line's current value and bounds. */
  private words(kind: Kind): string {
    const told = this.names.map((name) => {
      const points = (this.history.paths.get(name) ?? []).slice(-4 * this.span_s);
      const values = points.flatMap((point) => (point ? [kind.of(point)] : [])).filter((v) => v !== null);
      const last = values[values.length - 1];
      if (last === undefined) return `${name}: nothing`;
      const now = `${name}: now ${kind.show(last)}`;
      return kind.stepped ? now : `${now}, from ${kind.show(Math.min(...values))} to ${kind.show(Math.max(...values))}`;
    });
    return `${kind.title}. ${told.join("; ")}`;
  }

  private resize(): void {
    for (const plot of this.plots) plot.setSize(this.size());
  }

  private size(): { width: number; height: number } {
    const width = this.into.firstElementChild?.clientWidth ?? this.into.clientWidth;
    return { width: Math.max(width, 240), height: 170 };
  }

  private build(): void {
    this.plots.forEach((plot) => plot.destroy());
    this.into.replaceChildren();
    this.figures = KINDS.map((kind) => {
      const figure = document.createElement("figure");
      figure.setAttribute("role", "img");
      const caption = document.createElement("figcaption");
      caption.textContent = kind.title;
      figure.append(caption);
      this.into.append(figure);
      return figure;
    });
    this.plots = KINDS.map((kind, index) => new uPlot(this.options(kind), this.data(kind), this.figures[index]!));
  }

  private options(kind: Kind): uPlot.Options {
    const ink = color("--ink-soft");
    const grid = { stroke: color("--grid"), width: 1 };
    const axis = { stroke: ink, grid, ticks: grid, font: "12px system-ui, sans-serif" };
    return {
      ...this.size(),
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { show: false }, y: false },
      scales: { x: { time: true }, y: { range: (_, min, max) => bounds(kind, min, max) } },
      axes: [
        { ...axis, space: 80, values: (_, at) => at.map((one) => clock(one * 1e3).slice(0, 8)) },
        kind.stepped
          ? { ...axis, size: 92, splits: () => [0, 1, 2], values: (_, at) => at.map(kind.show) }
          : { ...axis, size: 92, space: 34, values: (_, at) => at.map(kind.show) },
      ],
      series: [{}, ...this.names.map((name, n) => ({
        label: name,
        stroke: strokeOf(n),
        dash: dash(n),
        width: 2,
        points: { show: false },
        spanGaps: false,
        ...(kind.stepped ? { paths: uPlot.paths.stepped!({ align: 1 }) } : {}),
      }))],
      hooks: { drawClear: [(plot) => this.bands(plot)] },
    };
  }

  /** Draws delivery gaps from their start to their end. */
  private bands(plot: uPlot): void {
    plot.ctx.save();
    plot.ctx.fillStyle = color("--hole");
    for (const [since_us, until_us] of this.history.bands()) {
      const left = plot.valToPos(this.history.unix_ms(since_us) / 1e3, "x", true);
      const right = plot.valToPos(this.history.unix_ms(until_us) / 1e3, "x", true);
      const [from, to] = [Math.max(left, plot.bbox.left), Math.min(right, plot.bbox.left + plot.bbox.width)];
      if (to >= from) plot.ctx.fillRect(from, plot.bbox.top, Math.max(to - from, 2), plot.bbox.height);
    }
    plot.ctx.restore();
  }
}

function bounds(kind: Kind, min: number | null, max: number | null): [number, number] {
  if (kind.stepped) return [-0.15, 2.15];
  if (min === null || max === null || max <= 0) return [0, 1];
  return [0, max * 1.1];
}
