//! Parser of a `DuplexSpec`.

use core::str::FromStr;

use marline_time::{Duration, Rate};

use super::value::{bytes, duration, positive, probability, rate};
use super::{DuplexSpec, LinkSpec, PingRef, RadioSpec, RadioUse, RateSpec, SpecError, TraceRef};
use crate::{
    GilbertElliott, Jitter, Mtu, OptionRule, OutageMode, PhoneMobility, QueueLimit, Renumber,
    Reorder, Split, SplitOptions, Steps, preset,
};

type Words<T> = Result<T, String>;

const KEYS: &str = "rate, trace, mtu, queue, delay, jitter, overtaking, rtt, lost, ping, loss, \
    ge, drop, reorder, \
                    duplicate, corrupt, rewrite, strip, block, mangle, renumber, rebind, split, \
                    coalesce, thin, \
                    swallow, down, flap, outage, radio";

impl FromStr for DuplexSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut spec = DuplexSpec::default();
        for (index, item) in text.split(',').enumerate() {
            let item = item.trim();
            if item.is_empty() && text.trim().is_empty() {
                break;
            }
            let error = |why| SpecError { item: item.to_owned(), problem: why };
            match item.split_once('=') {
                None if index == 0 && preset::find(item).is_some() => {
                    spec = preset::find(item).unwrap_or_default().parse()?;
                }
                None => return Err(error(missing_value_error(item, index))),
                Some((key, value)) => spec.set(key.trim(), value.trim()).map_err(error)?,
            }
        }
        Ok(spec)
    }
}

fn missing_value_error(item: &str, index: usize) -> String {
    let presets = preset::PRESETS.map(|(name, _)| name).join(", ");
    match (item, index) {
        ("", _) => "an item between two commas is empty".to_owned(),
        (_, 0) => format!("neither `key=value` nor a preset; presets: {presets}"),
        _ => "must be `key=value` (a preset can only be first)".to_owned(),
    }
}

impl DuplexSpec {
    fn set(&mut self, key: &str, value: &str) -> Words<()> {
        if let "up.radio" | "down.radio" = key {
            return Err("both directions share one radio: write `radio=`".to_owned());
        }
        if let Some(key) = key.strip_prefix("up.") {
            return self.up.set(key, value);
        }
        if let Some(key) = key.strip_prefix("down.") {
            return self.down.set(key, value);
        }
        self.up.set(key, value)?;
        self.down.set(key, value)
    }
}

impl LinkSpec {
    /// Sets one property from its text.
    fn set(&mut self, key: &str, value: &str) -> Words<()> {
        match key {
            "rate" => self.rate = parse_rate(value)?,
            "trace" => self.rate = RateSpec::Trace(parse_trace_ref(value)?),
            "mtu" => self.mtu = parse_unless(value, "none", mtu)?,
            "queue" => self.queue = queue(value)?,
            "delay" => self.delay = duration(value)?,
            "jitter" => self.jitter = jitter(value)?,
            "overtaking" => self.overtaking = choice(value, [("yes", true), ("no", false)])?,
            "rtt" => self.rtt = Some(parse_ping_ref(value)?),
            "lost" => self.lost = Some(parse_ping_ref(value)?),
            "ping" => {
                self.rtt = Some(parse_ping_ref(value)?);
                self.lost = self.rtt.clone();
            }
            "loss" => self.loss = probability(value)?,
            "ge" => self.gilbert_elliott = Some(gilbert_elliott(value)?),
            "drop" => self.drop = numbers(value)?,
            "reorder" => self.faults.reorder = Some(reorder(value)?),
            "duplicate" => self.faults.duplicate = probability(value)?,
            "corrupt" => self.faults.corrupt = probability(value)?,
            "rewrite" => self.faults.rewrite = probability(value)?,
            "mangle" => self.middlebox.mangle = OptionRule::parse_list(value)?,
            "strip" => self.middlebox.strip = OptionRule::parse_list(value)?,
            "block" => self.middlebox.block = OptionRule::parse_list(value)?,
            "renumber" => {
                let kinds = [
                    ("no", None),
                    ("yes", Some(Renumber::All)),
                    ("not-sack", Some(Renumber::NotSack)),
                ];
                self.middlebox.renumber = choice(value, kinds)?;
            }
            "rebind" => self.rebind = parse_unless(value, "never", duration)?,
            "split" => self.middlebox.split = parse_unless(value, "none", split)?,
            "coalesce" => self.middlebox.coalesce = parse_unless(value, "none", positive)?,
            "thin" => self.middlebox.thin = parse_unless(value, "none", parse_thin)?,
            "swallow" => self.middlebox.swallow = probability(value)?,
            "down" => self.outage.intervals = intervals(value)?,
            "flap" => {
                let (up, down) = pair(value, ':', "MEAN-UP:MEAN-DOWN")?;
                self.outage.flap = Some((positive(up)?, positive(down)?));
            }
            "outage" => {
                let modes = [("kill", OutageMode::Kill), ("suspend", OutageMode::Suspend)];
                self.outage.mode = choice(value, modes)?;
            }
            "radio" => self.radio = radio(value)?,
            _ => return Err(format!("unknown key `{key}`; known: {KEYS}")),
        }
        Ok(())
    }
}

fn choice<T: Copy, const N: usize>(value: &str, choices: [(&str, T); N]) -> Words<T> {
    match choices.iter().find(|(name, _)| *name == value) {
        Some((_, chosen)) => Ok(*chosen),
        None => Err(format!("must be one of {}", choices.map(|(name, _)| name).join(", "))),
    }
}

/// Returns `None` if the value is this word, and otherwise the parsed value.
fn parse_unless<T>(
    value: &str,
    word: &str,
    parse: impl FnOnce(&str) -> Words<T>,
) -> Words<Option<T>> {
    if value == word { Ok(None) } else { parse(value).map(Some) }
}

fn split(value: &str) -> Words<Split> {
    let (size, options) = match value.split_once(':') {
        None => (value, SplitOptions::All),
        Some((size, "first")) => (size, SplitOptions::First),
        Some((_, other)) => return Err(format!("`{other}` must be `first` or omitted")),
    };
    match u16::try_from(bytes(size)?) {
        Ok(bytes @ 1..) => Ok(Split { bytes, options }),
        _ => Err("pieces must have 1 to 65535 bytes".to_owned()),
    }
}

fn parse_thin(value: &str) -> Words<u32> {
    let every = value.parse().ok().filter(|every| (2..=1_000).contains(every));
    every.ok_or_else(|| "must be a number between 2 and 1000".to_owned())
}

fn pair<'a>(value: &'a str, separator: char, form: &str) -> Words<(&'a str, &'a str)> {
    value.split_once(separator).ok_or_else(|| format!("must look like {form}"))
}

fn parse_rate(value: &str) -> Words<RateSpec> {
    if value == "unlimited" {
        return Ok(RateSpec::Unlimited);
    }
    if let Some(peak) = value.strip_prefix("walkout:") {
        return Ok(RateSpec::WalkCycle(parse_nonzero_rate(peak)?));
    }
    for (word, leaves) in [("leaving:", true), ("staying:", false)] {
        if let Some(peak) = value.strip_prefix(word) {
            return Ok(RateSpec::PhoneMobility(PhoneMobility {
                peak: parse_nonzero_rate(peak)?,
                leaves,
            }));
        }
    }
    if !value.contains(':') {
        return Ok(RateSpec::Constant(parse_nonzero_rate(value)?));
    }
    let (list, period) = match value.split_once('/') {
        Some((list, period)) => (list, Some(positive(period)?)),
        None => (value, None),
    };
    let mut points: Vec<(Duration, Rate)> = Vec::new();
    for step in list.split('+') {
        let (from, step_rate) = pair(step, ':', "TIME:RATE+TIME:RATE")?;
        points.push((duration(from)?, rate(step_rate)?));
    }
    if points.iter().all(|(_, step)| *step == Rate::ZERO) {
        return Err("every step has a rate of zero; at least one must be above zero".to_owned());
    }
    Ok(RateSpec::Steps(Steps::new(points, period)?))
}

fn parse_nonzero_rate(value: &str) -> Words<Rate> {
    match rate(value)? {
        Rate::ZERO => Err("a rate of zero passes nothing; use `down=` for outages".to_owned()),
        some => Ok(some),
    }
}

fn mtu(value: &str) -> Words<Mtu> {
    let (size, silent) = match value.split_once(':') {
        None => (value, false),
        Some((size, "silent")) => (size, true),
        Some((_, other)) => return Err(format!("`{other}` must be `silent` or omitted")),
    };
    let (least, most) = (Mtu::RANGE.start(), Mtu::RANGE.end());
    let bytes = u32::try_from(bytes(size)?).ok().filter(|bytes| Mtu::RANGE.contains(bytes));
    let bytes = bytes.ok_or_else(|| format!("must be between {least}B and {most}B"))?;
    Ok(Mtu { bytes, silent })
}

fn queue(value: &str) -> Words<QueueLimit> {
    if value.ends_with('B') {
        return Ok(QueueLimit::Bytes(bytes(value)?));
    }
    duration(value).map(QueueLimit::Time).map_err(|_| {
        format!("`{value}` is neither a time such as `80ms` nor a size such as `64kB`")
    })
}

fn jitter(value: &str) -> Words<Jitter> {
    match value.split_once(':') {
        None if value == "none" => Ok(Jitter::None),
        None => duration(value).map(Jitter::Uniform),
        Some(("uniform", most)) => duration(most).map(Jitter::Uniform),
        Some(("normal", deviation)) => duration(deviation).map(Jitter::Normal),
        Some((other, _)) => Err(format!("unknown jitter `{other}`; known: uniform, normal")),
    }
}

fn parse_trace_ref(value: &str) -> Words<TraceRef> {
    let (name, start) = match value.split_once('@') {
        Some((name, start)) => (name, duration(start)?),
        None => (value, Duration::ZERO),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
        return Err(format!("`{name}` is not a valid trace name (letters, digits, `-`, `_`, `.`)"));
    }
    Ok(TraceRef { name: name.to_owned(), start })
}

fn parse_ping_ref(value: &str) -> Words<PingRef> {
    let (name, rest) = pair(value, ':', "FILE:CARRIER or FILE:CARRIER@TIME")?;
    let (carrier, start) = match rest.split_once('@') {
        Some((carrier, start)) => (carrier, duration(start)?),
        None => (rest, Duration::ZERO),
    };
    let name = parse_trace_ref(name)?.name;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if carrier.is_empty() || !carrier.chars().all(plain) {
        return Err(format!("`{carrier}` is not a valid carrier name (letters, digits, `-`, `_`)"));
    }
    Ok(PingRef { trace: TraceRef { name, start }, carrier: carrier.to_owned() })
}

fn gilbert_elliott(value: &str) -> Words<GilbertElliott> {
    let parts: Vec<&str> = value.split(':').collect();
    if !(2..=4).contains(&parts.len()) {
        return Err("must look like GOOD:BAD[:LOSS-BAD[:LOSS-GOOD]]".to_owned());
    }
    let chance = |index: usize, default| parts.get(index).map_or(Ok(default), |p| probability(p));
    Ok(GilbertElliott {
        good: positive(parts[0])?,
        bad: positive(parts[1])?,
        loss_bad: chance(2, 1.0)?,
        loss_good: chance(3, 0.0)?,
    })
}

fn numbers(value: &str) -> Words<Vec<u64>> {
    let mut list = Vec::new();
    for part in value.split('+') {
        match part.parse() {
            Ok(0) | Err(_) => {
                return Err(format!("`{part}` is not a valid packet number; numbers start at 1"));
            }
            Ok(number) => list.push(number),
        }
    }
    list.sort_unstable();
    list.dedup();
    Ok(list)
}

fn radio(value: &str) -> Words<Option<RadioSpec>> {
    let (kind, wakes) = match value.split_once(':') {
        None if value == "none" => return Ok(None),
        None => (value, RadioUse::Published),
        Some((kind, "meter")) => (kind, RadioUse::Meter),
        Some((kind, takes)) => (kind, RadioUse::WakesAfter(duration(takes)?)),
    };
    Ok(Some(RadioSpec { kind: kind.parse()?, wakes }))
}

fn reorder(value: &str) -> Words<Reorder> {
    let (often, extra) = pair(value, ':', "PROBABILITY:EXTRA-DELAY")?;
    Ok(Reorder { probability: probability(often)?, extra: positive(extra)? })
}

fn intervals(value: &str) -> Words<Vec<(Duration, Duration)>> {
    let mut list: Vec<(Duration, Duration)> = Vec::new();
    for part in value.split('+') {
        let (from, to) = pair(part, '-', "FROM-TO+FROM-TO")?;
        let (from, to) = (duration(from)?, duration(to)?);
        if from >= to {
            return Err(format!("`{part}` ends before it begins"));
        }
        if list.last().is_some_and(|(_, before)| *before >= from) {
            return Err(format!("`{part}` begins before the previous outage ends"));
        }
        list.push((from, to));
    }
    Ok(list)
}
