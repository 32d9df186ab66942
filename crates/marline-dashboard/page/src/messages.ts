// Messages of the program, as crates/marline-dashboard/src/model.rs has them.

export interface About { role: string; version: string; pid: number }

export interface Radio { kind: string; state: string; traffic_j: number; idle_j: number; promotions: number }

export interface PathSummary {
  name: string;
  state: "usable" | "degraded" | "unreachable";
  reason: string | null;
  local: string | null;
  backup: boolean;
  metered: boolean;
  heard_ms: number | null;
  srtt_us: number | null;
  bytes_sent: number;
  bytes_repeated: number;
  bytes_copied: number;
  bytes_received: number;
  bytes_duplicate: number;
  radio: Radio | null;
}

export interface Connection {
  connection: number;
  fallback: string | null;
  scheduler: string;
  subflows: number;
  silent: number;
  srtt_us: number | null;
  bytes_written: number;
  bytes_read: number;
  bytes_copied: number;
  buffered: number;
  waiting_us: number | null;
}

export interface Totals {
  connections: number;
  fallbacks: number;
  schedulers: string[];
  repairs_sent: number;
  bytes_repaired: number;
  waiting: [number, number] | null;
}

export interface Sample { at_us: number; totals: Totals; paths: PathSummary[]; connections: Connection[] | null }

export interface Happening {
  event: string;
  at_us: number;
  since_us: number | null;
  connection: number | null;
  direction: string | null;
  paths: string[];
  cause: string | null;
  policy: string | null;
  more: number;
}

export interface Listener {
  about(about: About): void;
  sample(sample: Sample): void;
  happening(happening: Happening): void;
  /** The connection to the program stands, or why not. */
  link(text: string, stands: boolean): void;
}

/** Reads the program's events for as long as the page is open, and asks again where they end. */
export async function follow(listener: Listener): Promise<never> {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  for (let wait_ms = 500; ; wait_ms = Math.min(wait_ms * 2, 8000)) {
    try {
      // EventSource could not send a token but in the address, where logs would keep it.
      const headers: Record<string, string> = token ? { Authorization: `Bearer ${token}` } : {};
      const answer = await fetch("events", { headers, cache: "no-store" });
      if (answer.ok && answer.body) {
        wait_ms = 500;
        await read(answer.body, listener);
        listener.link("the program has ended, or let this page go: what is shown is not new", false);
      } else {
        listener.link(`${answer.status}: ${(await answer.text()).trim()}`, false);
      }
    } catch {
      listener.link("the program does not answer: what is shown is not new", false);
    }
    await new Promise((done) => setTimeout(done, wait_ms));
  }
}

async function read(body: ReadableStream<Uint8Array>, listener: Listener): Promise<void> {
  const reader = body.pipeThrough(new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const messages = (rest + value).split("\n\n");
    rest = messages.pop() ?? "";
    for (const message of messages) take(message, listener);
  }
}

/** One event: `event: KIND` and `data: JSON`. */
export function take(message: string, listener: Listener): void {
  const field = (name: string) =>
    message.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
  const data: unknown = JSON.parse(field("data") ?? "null");
  switch (field("event")) {
    case "about": return listener.about(data as About);
    case "sample": return listener.sample(data as Sample);
    case "happening": return listener.happening(data as Happening);
  }
}
