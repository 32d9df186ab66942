// Formatting of numbers, in SI units with three digits.

function scaled(value: number, units: string[], base: number): string {
  let unit = 0;
  while (value >= base * 0.9995 && unit + 1 < units.length) {
    value /= base;
    unit += 1;
  }
  const digits = unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[unit]}`;
}

export const bytes = (count: number): string => scaled(count, ["B", "kB", "MB", "GB", "TB"], 1000);

export const rate = (bits_per_s: number): string => scaled(bits_per_s, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"], 1000);

export function time(us: number | null): string {
  if (us === null) return "–";
  if (us < 1000) return `${us} µs`;
  if (us < 1e6) return `${(us / 1e3).toFixed(us < 1e5 ? 1 : 0)} ms`;
  return `${(us / 1e6).toFixed(2)} s`;
}

export const share = (part: number, whole: number): string =>
  whole > 0 ? `${((100 * part) / whole).toFixed(1)}%` : "–";

export function clock(unix_ms: number): string {
  const at = new Date(unix_ms);
  const two = (n: number) => String(n).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${Math.floor(at.getMilliseconds() / 100)}`;
}
