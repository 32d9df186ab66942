// Bounded history of samples. The charts' lines are differences of the program's counters in it.

import type { Happening, PathSummary, Sample } from "./messages";

/** Maximum number of samples: fifteen minutes at four per second. */
export const KEPT = 3600;
/** Maximum number of delivery gaps and of events. */
export const EVENTS = 200;
/** Number of samples over which rates and shares are computed. */
const WINDOW = 4;

/** Heights of the states in the chart. An unknown state leaves a gap. */
export const HEALTH = { untried: null, unreachable: 0, degraded: 1, usable: 2 } as const;

export interface Point {
  srtt_ms: number | null;
  receives_bits_per_s: number | null;
  sends_bits_per_s: number | null;
  repeated_percent: number | null;
  health: number | null;
  summary: PathSummary;
}

export class History {
  /** Times of the samples, in seconds since 1970. */
  readonly at: number[] = [];
  /** Points by path name, with one entry for each sample. */
  readonly paths = new Map<string, (Point | null)[]>();
  readonly holes: Happening[] = [];
  readonly events: Happening[] = [];
  latest: Sample | null = null;
  /** Offset from the program's clock to the time since 1970, in ms. */
  private offset_ms: number | null = null;
  private readonly samples: Sample[] = [];

  /** Starts over for another process, which has a different clock. */
  begin(): void {
    for (const list of [this.at, this.holes, this.events, this.samples]) list.length = 0;
    this.paths.clear();
    this.latest = null;
    this.offset_ms = null;
  }

  unix_ms(at_us: number): number {
    return at_us / 1e3 + (this.offset_ms ?? Date.now());
  }

  add(sample: Sample): void {
    if (this.latest && sample.at_us <= this.latest.at_us) return;
    // A new page receives all stored messages together, so the smallest offset is that of the most recent event.
    const offset_ms = Date.now() - sample.at_us / 1e3;
    if (this.offset_ms === null || offset_ms < this.offset_ms) {
      const moved_s = (offset_ms - (this.offset_ms ?? offset_ms)) / 1e3;
      if (moved_s !== 0) this.at.forEach((at, index) => (this.at[index] = at + moved_s));
      this.offset_ms = offset_ms;
    }
    this.at.push(this.unix_ms(sample.at_us) / 1e3);
    this.samples.push(sample);
    const before = this.samples[this.samples.length - 1 - WINDOW] ?? this.samples[0]!;
    for (const path of sample.paths) {
      if (!this.paths.has(path.name)) this.paths.set(path.name, new Array(this.at.length - 1).fill(null));
    }
    for (const [name, points] of this.paths) {
      const now = sample.paths.find((path) => path.name === name);
      points.push(now ? point(now, before.paths.find((path) => path.name === name), sample.at_us - before.at_us) : null);
    }
    this.latest = sample;
    this.trim();
  }

  private trim(): void {
    if (this.at.length > KEPT) {
      this.at.shift();
      for (const points of this.paths.values()) points.shift();
    }
    if (this.samples.length > WINDOW + 1) this.samples.shift();
    for (const [name, points] of this.paths) {
      if (points.every((one) => one === null)) this.paths.delete(name);
    }
  }

  happened(happening: Happening): void {
    const list = happening.event === "HOLE" ? this.holes : this.events;
    list.push(happening);
    if (list.length > EVENTS) list.shift();
  }

  /** Starts and ends of the delivery gaps, including the current one. */
  bands(): [since_us: number, until_us: number][] {
    const all = this.holes.map((hole): [number, number] => [hole.since_us ?? hole.at_us, hole.at_us]);
    const now = this.latest;
    if (now?.totals.waiting) all.push([now.at_us - now.totals.waiting[0], now.at_us]);
    return all;
  }

  /** Bytes copied to each path between two times, according to the samples. */
  copied(since_us: number, until_us: number): Map<string, number> {
    const found = new Map<string, number>();
    const index = (at_us: number) => {
      const at = this.unix_ms(at_us) / 1e3;
      const later = this.at.findIndex((one) => one > at);
      return later < 0 ? this.at.length - 1 : later;
    };
    const [from, to] = [Math.max(index(since_us) - 1, 0), index(until_us)];
    for (const [name, points] of this.paths) {
      const [a, b] = [points[from]?.summary, points[to]?.summary];
      if (a && b && b.bytes_copied > a.bytes_copied) found.set(name, b.bytes_copied - a.bytes_copied);
    }
    return found;
  }
}

function point(now: PathSummary, before: PathSummary | undefined, span_us: number): Point {
  const per_s = (of: (path: PathSummary) => number) =>
    before && span_us > 0 ? (8e6 * Math.max(of(now) - of(before), 0)) / span_us : null;
  const sent = before ? now.bytes_sent - before.bytes_sent : 0;
  return {
    srtt_ms: now.state !== "unreachable" && now.srtt_us !== null ? now.srtt_us / 1e3 : null,
    receives_bits_per_s: per_s((path) => path.bytes_received),
    sends_bits_per_s: per_s((path) => path.bytes_sent),
    repeated_percent: before && sent > 0 ? (100 * Math.max(now.bytes_repeated - before.bytes_repeated, 0)) / sent : null,
    health: HEALTH[now.state],
    summary: now,
  };
}
