// Tables. Rows keep their positions while their cells change, so that they stay readable.

import { bytes, clock, rate, share, time } from "./format";
import type { History } from "./history";
import { dash, lineClass } from "./charts";
import type { Connection, Happening, PathSummary, Totals } from "./messages";

type Cells = [label: string, text: string][];

/** Fills a table with rows, each with a key and cells. */
function fill(table: HTMLTableElement, rows: { key: string; cells: Cells; data?: Record<string, string> }[]): void {
  const body = table.tBodies[0]!;
  const there = new Map([...body.rows].map((row) => [row.dataset.key ?? "", row]));
  rows.forEach(({ key, cells, data }, index) => {
    let row = there.get(key);
    if (!row) {
      row = document.createElement("tr");
      row.dataset.key = key;
      const heads = table.tHead!.rows[0]!.cells;
      cells.forEach(([label], column) => {
        const cell = document.createElement(column === 0 ? "th" : "td");
        if (column === 0) cell.setAttribute("scope", "row");
        cell.dataset.label = label;
        cell.className = heads[column]?.className ?? "";
        row!.append(cell);
      });
    }
    there.delete(key);
    cells.forEach(([, text], column) => {
      const cell = row!.cells[column]!;
      if (cell.textContent !== text) cell.textContent = text;
    });
    Object.assign(row.dataset, data);
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
  });
  there.forEach((row) => row.remove());
}

const MARKS = { usable: "● usable", degraded: "▲ degraded", unreachable: "■ unreachable", untried: "○ untried" };

export function paths(table: HTMLTableElement, history: History): void {
  const rows = (history.latest?.paths ?? []).map((path) => {
    const points = history.paths.get(path.name) ?? [];
    const last = points[points.length - 1];
    const again = path.bytes_repeated + path.bytes_copied;
    const cells: Cells = [
      ["path", path.name],
      ["state", state(path)],
      ["RTT", time(path.srtt_us)],
      ["receives", rate(last?.receives_bits_per_s ?? 0)],
      ["sends", rate(last?.sends_bits_per_s ?? 0)],
      ["received", bytes(path.bytes_received)],
      ["sent, new", bytes(Math.max(path.bytes_sent - again, 0))],
      ["copies", `${bytes(path.bytes_copied)}, ${share(path.bytes_copied, path.bytes_sent)}`],
      ["retransmitted", `${bytes(path.bytes_repeated)}, ${share(path.bytes_repeated, path.bytes_sent)}`],
    ];
    return { key: path.name, cells, data: { path: path.name, state: path.state } };
  });
  fill(table, rows);
}

function state(path: PathSummary): string {
  const words = [MARKS[path.state], path.backup ? "backup" : "", path.metered ? "metered" : ""].filter(Boolean).join(", ");
  return path.reason ? `${words}: ${path.reason}` : words;
}

export function price(paths: PathSummary[], totals: Totals): string {
  const sum = (of: (path: PathSummary) => number) => paths.reduce((all, path) => all + of(path), 0);
  const [sent, copied, repeated] = [sum((p) => p.bytes_sent), sum((p) => p.bytes_copied), sum((p) => p.bytes_repeated)];
  const fresh = Math.max(sent - copied - repeated, 0);
  let text = `Of ${bytes(sent)} sent, ${bytes(fresh)} were new, ${bytes(copied)} copies (${share(copied, sent)}) and ` +
    `${bytes(repeated)} retransmitted (${share(repeated, sent)}). Duplicates received: ${bytes(sum((p) => p.bytes_duplicate))}.`;
  if (totals.repairs_sent > 0 || totals.bytes_repaired > 0) {
    text += ` Coding: ${totals.repairs_sent} repairs sent, ${bytes(totals.bytes_repaired)} recovered from received repairs.`;
  }
  if (totals.memory_limit_bytes !== null) {
    text += ` Memory: ${bytes(totals.memory_bytes)} of ${bytes(totals.memory_limit_bytes)}`;
    text += totals.memory_waits > 0 ? `, ${totals.memory_waits} waits for memory.` : ".";
  }
  return text;
}

export function holes(table: HTMLTableElement, history: History): void {
  const rows = [...history.holes].reverse().map((hole) => {
    const since_us = hole.since_us ?? hole.at_us;
    const cells: Cells = [
      ["began", clock(history.unix_ms(since_us))],
      ["length", time(hole.at_us - since_us)],
      ["connection", String(hole.connection ?? "–")],
      ["direction", hole.direction ?? "–"],
      ["cause", hole.cause ?? "unknown"],
      ["action", done(hole, history)],
    ];
    const data = { sinceUs: String(since_us), atUs: String(hole.at_us), connection: String(hole.connection ?? "") };
    return { key: `${hole.connection}/${hole.direction}/${since_us}`, cells, data };
  });
  fill(table, rows);
}

function done(hole: Happening, history: History): string {
  const since_us = hole.since_us ?? hole.at_us;
  const copies = [...history.copied(since_us, hole.at_us)].map(([name, count]) => `${bytes(count)} copied to ${name}`);
  return [hole.policy ?? "", ...copies].filter(Boolean).join("; ");
}

export function connections(table: HTMLTableElement, all: Connection[]): void {
  fill(table, all.map((one) => {
    const cells: Cells = [
      ["connection", String(one.connection)],
      ["scheduler", one.fallback ? `plain TCP: ${one.fallback}` : one.scheduler],
      ["subflows", one.unreachable > 0 ? `${one.subflows} (${one.unreachable} unreachable)` : String(one.subflows)],
      ["RTT", time(one.srtt_us)],
      ["read", bytes(one.bytes_read)],
      ["written", bytes(one.bytes_written)],
      ["copies", bytes(one.bytes_copied)],
      ["waits", one.waiting_us === null ? "–" : time(one.waiting_us)],
    ];
    return { key: String(one.connection), cells };
  }));
}

const WORDS: Record<string, string> = {
  SF_UNREACHABLE: "is unreachable: its data is sent on other subflows",
  SF_REACHABLE: "receives again",
  SF_CLOSED: "subflow closed",
  PATH_FAILED: "cannot reach the server",
  PATH_WORKS: "reaches the server again",
  FALLBACK: "falls back to plain TCP",
};

export function event(happening: Happening): string {
  if (happening.event === "LEFT_OUT") return `${happening.more} more events are not shown`;
  const what = WORDS[happening.event] ?? happening.event;
  const of = happening.connection === null ? "" : ` (connection ${happening.connection})`;
  const why = happening.cause ? `: ${happening.cause}` : "";
  return `${happening.paths.join(", ")} ${what}${of}${why}`.trim();
}

export function events(list: HTMLOListElement, history: History): void {
  const last = history.events.slice(-50).reverse();
  list.replaceChildren(...last.map((happening) => {
    const item = document.createElement("li");
    const at = document.createElement("time");
    at.textContent = clock(history.unix_ms(happening.at_us));
    item.append(at, ` ${event(happening)}`);
    item.dataset.event = happening.event;
    item.dataset.atUs = String(happening.at_us);
    return item;
  }));
}

export function legend(into: HTMLElement, names: string[]): void {
  if (into.dataset.names === names.join("\n")) return;
  into.dataset.names = names.join("\n");
  const space = "http://www.w3.org/2000/svg";
  into.replaceChildren(...names.map((name, index) => {
    const one = document.createElement("span");
    const picture = document.createElementNS(space, "svg");
    picture.setAttribute("viewBox", "0 0 28 8");
    picture.setAttribute("aria-hidden", "true");
    const line = document.createElementNS(space, "path");
    line.setAttribute("d", "M0 4H28");
    line.setAttribute("class", lineClass(index));
    line.setAttribute("stroke-dasharray", dash(index).join(" "));
    picture.append(line);
    one.append(picture, ` ${name}`);
    return one;
  }));
}
