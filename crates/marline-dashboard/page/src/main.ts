// Dashboard of a running marline program. Its contents are described in docs/operate/dashboard.md.

import "uplot/dist/uPlot.min.css";
import "./page.css";
import { Charts } from "./charts";
import { time } from "./format";
import { History } from "./history";
import { type About, follow, type Happening, type Sample } from "./messages";
import { PlacesView } from "./places";
import * as tables from "./tables";

const at = <T extends HTMLElement>(id: string): T => document.getElementById(id) as T;

const history = new History();
const charts = new Charts(at("charts"), history);
const places = new PlacesView(at("places"), at("places-words"), at("places-of"), at("places-way"), history);
let held = false;
let drawing = false;
let process = "";

/** Draws once for all messages since the last drawing. */
function draw(): void {
  if (drawing || held) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    if (held || !history.latest) return;
    const { totals, paths, connections, at_us } = history.latest;
    charts.draw();
    tables.legend(at("legend"), [...history.paths.keys()]);
    tables.paths(at("paths"), history);
    tables.holes(at("hole-rows"), history);
    tables.events(at("events"), history);
    at("price").textContent = tables.price(paths, totals);
    const plain = totals.fallbacks > 0 ? `, ${totals.fallbacks} of them plain TCP` : "";
    at("totals").textContent = `${totals.connections} connections${plain}, scheduler ${totals.schedulers.join(", ") || "none"}`;
    at("no-holes").hidden = history.holes.length > 0;
    at("hole-rows").hidden = history.holes.length === 0;
    at("waiting").hidden = totals.waiting === null;
    if (totals.waiting) at("waiting").textContent = `Connection ${totals.waiting[1]} has been waiting for ${time(totals.waiting[0])}.`;
    if (connections) {
      tables.connections(at("connections"), connections);
      places.offer(connections);
      at("listed").textContent = connections.length < totals.connections ? `${connections.length} busiest of ${totals.connections}` : "";
    }
    document.body.dataset.atUs = String(at_us);
  });
}

/** Announces changes of paths' states to screen readers. */
function announce(before: Sample | null, now: Sample): void {
  for (const path of now.paths) {
    const was = before?.paths.find((one) => one.name === path.name);
    if (was && was.state !== path.state) {
      at("news").textContent = `${path.name} is ${path.state}${path.reason ? `: ${path.reason}` : ""}`;
    }
  }
}

void follow({
  about(about: About): void {
    const now = `${about.role} ${about.version} ${about.pid}`;
    if (now !== process) {
      history.begin();
      places.forget();
    }
    process = now;
    document.title = `Marline ${about.role}`;
    at("title").textContent = `Marline ${about.role}`;
    this.link(`live: version ${about.version}, process ${about.pid}`, true);
  },
  sample(sample: Sample): void {
    const before = history.latest;
    history.add(sample.connections || !before ? sample : { ...sample, connections: before.connections });
    announce(before, sample);
    draw();
  },
  happening(happening: Happening): void {
    const known = [...history.holes, ...history.events].some((one) =>
      one.event === happening.event && one.at_us === happening.at_us && one.connection === happening.connection);
    if (!known) history.happened(happening);
    draw();
  },
  link(text: string, stands: boolean): void {
    if (at("link").textContent !== text) at("link").textContent = text;
    document.body.dataset.live = String(stands);
  },
});

for (const button of at("span").querySelectorAll("button")) {
  button.addEventListener("click", () => {
    charts.span_s = Number(button.dataset.s);
    for (const other of at("span").querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
    draw();
  });
}
at("pause").addEventListener("click", () => {
  held = !held;
  at("pause").setAttribute("aria-pressed", String(held));
  draw();
});
