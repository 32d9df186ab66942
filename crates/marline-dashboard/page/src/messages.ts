// Messages of the program, as defined in crates/marline-dashboard/src/model.rs.

export interface About { role: string; version: string; pid: number }

export interface PathSummary {
  name: string;
  state: "usable" | "degraded" | "unreachable" | "untried";
  reason: string | null;
  local: string | null;
  backup: boolean;
  metered: boolean;
  last_rx_ms: number | null;
  srtt_us: number | null;
  retransmitted: number | null;
  bytes_sent: number;
  bytes_repeated: number;
  bytes_copied: number;
  bytes_received: number;
  bytes_duplicate: number;
}

export interface Connection {
  connection: number;
  fallback: string | null;
  scheduler: string;
  subflows: number;
  unreachable: number;
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
  memory_bytes: number;
  memory_limit_bytes: number | null;
  memory_waits: number;
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

export type Manner = "new" | "copy" | "reinjection" | "repeat" | "duplicate";

export interface Carried { at_us: number; subflow: number; sent: boolean; manner: Manner; dsn: number; bytes: number }

export interface Places {
  at_us: number;
  carried: Carried[];
  acked: [at_us: number, dsn: number][];
  paths: [slot: number, name: string][];
  missed: number;
}

export interface Listener {
  about(about: About): void;
  sample(sample: Sample): void;
  happening(happening: Happening): void;
  /** Reports the state of the connection to the program, with the reason if there is none. */
  link(text: string, stands: boolean): void;
}

/** Requests a stream. EventSource could only send a token in the URL, which logs would record. */
function ask(path: string, signal?: AbortSignal): Promise<Response> {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  const headers: Record<string, string> = token ? { Authorization: `Bearer ${token}` } : {};
  return fetch(path, { headers, cache: "no-store", signal: signal ?? null });
}

/** Reads the positions of a connection's bytes until `signal` or the program ends the stream. Returns the reason. */
export async function followPlaces(connection: number, signal: AbortSignal, told: (places: Places) => void): Promise<string> {
  try {
    const answer = await ask(`places?connection=${connection}`, signal);
    if (!answer.ok || !answer.body) return `${answer.status}: ${(await answer.text()).trim()}`;
    await read(answer.body, (message) => told(JSON.parse(field(message, "data") ?? "null") as Places));
    return "the connection has ended, or another page shows one";
  } catch {
    return signal.aborted ? "" : "the program does not answer";
  }
}

/** Reads the program's events while the page is open, and reconnects when the stream ends. */
export async function follow(listener: Listener): Promise<never> {
  for (let wait_ms = 500; ; wait_ms = Math.min(wait_ms * 2, 8000)) {
    try {
      const answer = await ask("events");
      if (answer.ok && answer.body) {
        wait_ms = 500;
        await read(answer.body, (message) => take(message, listener));
        listener.link("disconnected from the program: the data shown is not current", false);
      } else {
        listener.link(`${answer.status}: ${(await answer.text()).trim()}`, false);
      }
    } catch {
      listener.link("the program does not answer: the data shown is not current", false);
    }
    await new Promise((done) => setTimeout(done, wait_ms));
  }
}

async function read(body: ReadableStream<Uint8Array>, take: (message: string) => void): Promise<void> {
  const reader = body.pipeThrough(new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const messages = (rest + value).split("\n\n");
    rest = messages.pop() ?? "";
    for (const message of messages) take(message);
  }
}

const field = (message: string, name: string) =>
  message.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);

/** Handles an event: `event: KIND` and `data: JSON`. */
export function take(message: string, listener: Listener): void {
  const data: unknown = JSON.parse(field(message, "data") ?? "null");
  switch (field(message, "event")) {
    case "about": return listener.about(data as About);
    case "sample": return listener.sample(data as Sample);
    case "happening": return listener.happening(data as Happening);
  }
}
