// Positions in the streams of one connection over time: the path of each byte, and bytes sent twice. Nothing is
// requested before the user selects a connection, and only the data for the picture is kept.

import { color, strokeOf } from "./charts";
import { bytes, time } from "./format";
import type { History } from "./history";
import { type Carried, type Connection, followPlaces, type Manner, type Places } from "./messages";

/** Seconds shown, and maximum number of entries. */
const SPAN_S = 20;
const KEPT = 8000;
const [LEFT, BOTTOM, TOP] = [76, 22, 8];

const MANNERS: [Manner, string][] = [
  ["new", "new"], ["copy", "copies"], ["reinjection", "reinjected"], ["repeat", "retransmitted"], ["duplicate", "duplicate"],
];

export class PlacesView {
  private carried: Carried[] = [];
  private acked: [number, number][] = [];
  private readonly names = new Map<number, string>();
  private now_us = 0;
  private missed = 0;
  private sent = false;
  private connection: number | null = null;
  private ends = new AbortController();

  constructor(
    private readonly figure: HTMLElement,
    private readonly words: HTMLElement,
    private readonly choice: HTMLSelectElement,
    private readonly ways: HTMLElement,
    private readonly history: History,
  ) {
    choice.addEventListener("change", () => this.choose(choice.value === "" ? null : Number(choice.value)));
    for (const button of ways.querySelectorAll("button")) {
      button.addEventListener("click", () => {
        this.sent = button.dataset.way === "sent";
        for (const other of ways.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
        this.draw();
      });
    }
  }

  /** Updates the connections offered for selection, the busiest first. */
  offer(connections: Connection[]): void {
    if (document.activeElement === this.choice && this.connection === null) return;
    const ids = connections.map((one) => one.connection);
    if (this.connection !== null && !ids.includes(this.connection)) ids.unshift(this.connection);
    const wanted = ["", ...ids.map(String)];
    const there = [...this.choice.options].map((option) => option.value);
    if (wanted.join() === there.join()) return;
    this.choice.replaceChildren(...wanted.map((value) => new Option(value === "" ? "none" : value, value)));
    this.choice.value = this.connection === null ? "" : String(this.connection);
  }

  /** Starts over for another process, which has different connections. */
  forget(): void {
    this.choose(null);
    this.choice.replaceChildren(new Option("none", ""));
  }

  private choose(connection: number | null): void {
    this.ends.abort();
    this.ends = new AbortController();
    [this.carried, this.acked, this.missed] = [[], [], 0];
    this.names.clear();
    this.connection = connection;
    this.figure.hidden = this.ways.hidden = connection === null;
    this.words.textContent = connection === null ? "" : "waiting for data";
    if (connection === null) return;
    const { signal } = this.ends;
    void followPlaces(connection, signal, (places) => this.take(places)).then((why) => {
      if (!signal.aborted) this.words.textContent = why;
    });
  }

  private take(places: Places): void {
    this.now_us = places.at_us;
    this.missed += places.missed;
    for (const [slot, name] of places.paths) this.names.set(slot, name);
    const since = this.now_us - SPAN_S * 1e6;
    this.carried = [...this.carried, ...places.carried].filter((one) => one.at_us >= since).slice(-KEPT);
    this.acked = [...this.acked, ...places.acked].filter(([at_us]) => at_us >= since).slice(-KEPT);
    this.draw();
  }

  private draw(): void {
    const canvas = this.figure.querySelector("canvas")!;
    const shown = this.carried.filter((one) => one.sent === this.sent);
    const holes = this.holes();
    this.tell(shown, holes.length);
    const ratio = devicePixelRatio || 1;
    const [width, height] = [Math.max(this.figure.clientWidth, 240), 260];
    [canvas.width, canvas.height] = [width * ratio, height * ratio];
    canvas.style.height = `${height}px`;
    const ctx = canvas.getContext("2d")!;
    ctx.scale(ratio, ratio);
    const ends = shown.flatMap((one) => [one.dsn, one.dsn + one.bytes]);
    const [low, high] = [Math.min(...(ends.length ? ends : [0])), Math.max(...(ends.length ? ends : [1]))];
    const x = (at_us: number) => LEFT + ((width - LEFT - 6) * (at_us - this.now_us + SPAN_S * 1e6)) / (SPAN_S * 1e6);
    const y = (dsn: number) => height - BOTTOM - ((height - BOTTOM - TOP) * (dsn - low)) / Math.max(high - low, 1);
    this.frame(ctx, width, height, [low, high]);
    ctx.fillStyle = color("--hole");
    for (const [from, to] of holes) {
      const left = Math.max(x(from), LEFT);
      ctx.fillRect(left, TOP, Math.max(Math.min(x(to), width - 6) - left, 2), height - BOTTOM - TOP);
    }
    if (this.sent) this.drawAcked(ctx, x, y, low);
    const order = [...this.history.paths.keys()];
    for (const one of shown) {
      const index = order.indexOf(this.names.get(one.subflow) ?? "");
      ctx.strokeStyle = ctx.fillStyle = strokeOf(index < 0 ? one.subflow : index);
      mark(ctx, one.manner, x(one.at_us), y(one.dsn), y(one.dsn + one.bytes));
    }
  }

  private frame(ctx: CanvasRenderingContext2D, width: number, height: number, [low, high]: [number, number]): void {
    ctx.font = "12px system-ui, sans-serif";
    ctx.fillStyle = color("--ink-soft");
    ctx.strokeStyle = color("--grid");
    ctx.textAlign = "right";
    for (const part of [0, 0.5, 1]) {
      const at = height - BOTTOM - (height - BOTTOM - TOP) * part;
      ctx.fillText(bytes(low + (high - low) * part), LEFT - 6, at + 4);
      ctx.beginPath();
      ctx.moveTo(LEFT, at);
      ctx.lineTo(width - 6, at);
      ctx.stroke();
    }
    ctx.fillText("now", width - 6, height - 6);
    ctx.textAlign = "left";
    ctx.fillText(`${SPAN_S} s ago`, LEFT, height - 6);
  }

  private drawAcked(ctx: CanvasRenderingContext2D, x: (at: number) => number, y: (dsn: number) => number, low: number): void {
    ctx.strokeStyle = color("--ink");
    ctx.beginPath();
    let before: number | null = null;
    for (const [at_us, dsn] of this.acked.filter(([, dsn]) => dsn >= low)) {
      if (before === null) ctx.moveTo(x(at_us), y(dsn));
      else {
        ctx.lineTo(x(at_us), y(before));
        ctx.lineTo(x(at_us), y(dsn));
      }
      before = dsn;
    }
    ctx.stroke();
  }

  /** Visible delivery gaps of this connection and direction. */
  private holes(): [number, number][] {
    const way = this.sent ? "sent" : "received";
    const since = this.now_us - SPAN_S * 1e6;
    return this.history.holes
      .filter((hole) => hole.connection === this.connection && hole.direction === way && hole.at_us >= since)
      .map((hole) => [hole.since_us ?? hole.at_us, hole.at_us]);
  }

  /** Describes the picture as text, path by path, and as data for tests. */
  private tell(shown: Carried[], holes: number): void {
    const sum = (list: Carried[]) => list.reduce((all, one) => all + one.bytes, 0);
    const slots = [...new Set(shown.map((one) => one.subflow))].sort();
    const paths = slots.map((slot) => {
      const mine = shown.filter((one) => one.subflow === slot);
      const parts = MANNERS.map(([manner, word]): [number, string] => [sum(mine.filter((one) => one.manner === manner)), word]);
      const said = parts.filter(([count]) => count > 0).map(([count, word]) => `${bytes(count)} ${word}`);
      return `${this.names.get(slot) ?? `subflow ${slot}`}: ${said.join(", ")}`;
    });
    const left = this.missed > 0 ? `; ${this.missed} events are left out` : "";
    const text = `${paths.join("; ") || "nothing"}; ${holes} gaps${left} (last ${time(SPAN_S * 1e6)})`;
    this.words.textContent = text;
    this.figure.setAttribute("aria-label", `Positions in the stream, ${this.sent ? "sent" : "received"}. ${text}`);
    for (const [manner] of MANNERS) {
      this.figure.dataset[manner] = String(sum(shown.filter((one) => one.manner === manner)));
    }
    this.figure.dataset.holes = String(holes);
  }
}

/** Draws a mark. Its shape shows the kind of transmission, its color the path. */
function mark(ctx: CanvasRenderingContext2D, manner: Manner, x: number, from: number, to: number): void {
  const [y, r] = [(from + to) / 2, 3.5];
  ctx.lineWidth = 1.6;
  ctx.beginPath();
  switch (manner) {
    case "new":
      ctx.moveTo(x, Math.max(from, to + 1.5));
      ctx.lineTo(x, to);
      break;
    case "copy":
    case "duplicate":
      ctx.arc(x, y, r, 0, 2 * Math.PI);
      break;
    case "reinjection":
      ctx.moveTo(x, y - r - 1);
      ctx.lineTo(x + r + 1, y + r);
      ctx.lineTo(x - r - 1, y + r);
      ctx.closePath();
      ctx.fill();
      break;
    case "repeat":
      ctx.moveTo(x - r, y - r);
      ctx.lineTo(x + r, y + r);
      ctx.moveTo(x - r, y + r);
      ctx.lineTo(x + r, y - r);
      break;
  }
  ctx.stroke();
}
