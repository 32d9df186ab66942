//! Formatting of a `DuplexSpec` as text that parses to the same value.

use core::fmt;

use super::value::{Bits, Bytes, Time};
use super::{DuplexSpec, LinkSpec, PingRef, RadioSpec, RadioUse, RateSpec, TraceRef};
use crate::{Jitter, Mtu, OutageMode, QueueLimit, Renumber, SplitOptions};

impl fmt::Display for DuplexSpec {
    /// Writes items that both directions share only once, and the others with their prefix. Omits properties with
    /// default values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (up, down) = (self.up.items(), self.down.items());
        let shared = up.iter().filter(|item| down.contains(item)).cloned();
        let only_up = up.iter().filter(|item| !down.contains(item)).map(|i| format!("up.{i}"));
        let only_down = down.iter().filter(|item| !up.contains(item)).map(|i| format!("down.{i}"));
        let all: Vec<String> = shared.chain(only_up).chain(only_down).collect();
        f.write_str(&all.join(","))
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.items().join(","))
    }
}

impl LinkSpec {
    /// Writes `key=value` for every property that differs from its default.
    fn items(&self) -> Vec<String> {
        let default = LinkSpec::default();
        let mut items = Vec::new();
        let mut item = |differs: bool, text: String| {
            if differs {
                items.push(text);
            }
        };
        item(self.rate != default.rate, rate(&self.rate));
        item(self.mtu.is_some(), self.mtu.map_or(String::new(), mtu));
        item(self.queue != default.queue, queue(self.queue));
        item(self.delay != default.delay, format!("delay={}", Time(self.delay)));
        item(self.jitter != default.jitter, jitter(self.jitter));
        item(self.overtaking, "overtaking=yes".to_owned());
        item(self.rtt.is_some(), ping("rtt", self.rtt.as_ref()));
        item(self.lost.is_some(), ping("lost", self.lost.as_ref()));
        item(self.loss != default.loss, format!("loss={}", self.loss));
        if let Some(ge) = &self.gilbert_elliott {
            let (good, bad) = (Time(ge.good), Time(ge.bad));
            item(true, format!("ge={good}:{bad}:{}:{}", ge.loss_bad, ge.loss_good));
        }
        let numbers: Vec<String> = self.drop.iter().map(u64::to_string).collect();
        item(!numbers.is_empty(), format!("drop={}", numbers.join("+")));
        if let Some(reorder) = &self.faults.reorder {
            item(true, format!("reorder={}:{}", reorder.probability, Time(reorder.extra)));
        }
        item(self.faults.duplicate != 0.0, format!("duplicate={}", self.faults.duplicate));
        item(self.faults.corrupt != 0.0, format!("corrupt={}", self.faults.corrupt));
        item(self.faults.rewrite != 0.0, format!("rewrite={}", self.faults.rewrite));
        let middlebox = &self.middlebox;
        for (key, rules) in [
            ("strip", &middlebox.strip),
            ("block", &middlebox.block),
            ("mangle", &middlebox.mangle),
        ] {
            let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
            item(!rules.is_empty(), format!("{key}={}", rules.join("+")));
        }
        middleboxes(self, &mut item);
        let down = |(from, to): &(_, _)| format!("{}-{}", Time(*from), Time(*to));
        let intervals: Vec<String> = self.outage.intervals.iter().map(down).collect();
        item(!intervals.is_empty(), format!("down={}", intervals.join("+")));
        if let Some((up, down)) = self.outage.flap {
            item(true, format!("flap={}:{}", Time(up), Time(down)));
        }
        item(self.outage.mode == OutageMode::Suspend, "outage=suspend".to_owned());
        item(self.radio.is_some(), self.radio.map_or(String::new(), radio));
        items
    }
}

/// Writes the middleboxes that modify more than options.
fn middleboxes(spec: &LinkSpec, item: &mut impl FnMut(bool, String)) {
    let (middlebox, time) = (&spec.middlebox, |time: Option<_>| Time(time.unwrap_or_default()));
    let not_sack = middlebox.renumber == Some(Renumber::NotSack);
    let kind = if not_sack { "not-sack" } else { "yes" };
    item(middlebox.renumber.is_some(), format!("renumber={kind}"));
    item(spec.rebind.is_some(), format!("rebind={}", time(spec.rebind)));
    if let Some(split) = middlebox.split {
        let first = if split.options == SplitOptions::First { ":first" } else { "" };
        item(true, format!("split={}{first}", Bytes(u64::from(split.bytes))));
    }
    item(middlebox.coalesce.is_some(), format!("coalesce={}", time(middlebox.coalesce)));
    item(middlebox.thin.is_some(), format!("thin={}", middlebox.thin.unwrap_or_default()));
    item(middlebox.swallow > 0.0, format!("swallow={}", middlebox.swallow));
}

fn rate(rate: &RateSpec) -> String {
    match rate {
        RateSpec::Unlimited => "rate=unlimited".to_owned(),
        RateSpec::Constant(rate) => format!("rate={}", Bits(*rate)),
        RateSpec::WalkCycle(peak) => format!("rate=walkout:{}", Bits(*peak)),
        RateSpec::PhoneMobility(phone) => {
            let word = if phone.leaves { "leaving" } else { "staying" };
            format!("rate={word}:{}", Bits(phone.peak))
        }
        RateSpec::Trace(trace) => format!("trace={}{}", trace.name, start(trace)),
        RateSpec::Steps(steps) => {
            let step = |(from, rate): &(_, _)| format!("{}:{}", Time(*from), Bits(*rate));
            let list: Vec<String> = steps.points().iter().map(step).collect();
            let period = steps.period().map_or(String::new(), |p| format!("/{}", Time(p)));
            format!("rate={}{period}", list.join("+"))
        }
    }
}

fn radio(radio: RadioSpec) -> String {
    let kind = radio.kind;
    match radio.wakes {
        RadioUse::Published => format!("radio={kind}"),
        RadioUse::WakesAfter(time) => format!("radio={kind}:{}", Time(time)),
        RadioUse::Meter => format!("radio={kind}:meter"),
    }
}

fn mtu(mtu: Mtu) -> String {
    let silent = if mtu.silent { ":silent" } else { "" };
    format!("mtu={}{silent}", Bytes(u64::from(mtu.bytes)))
}

fn queue(queue: QueueLimit) -> String {
    match queue {
        QueueLimit::Bytes(bytes) => format!("queue={}", Bytes(bytes)),
        QueueLimit::Time(time) => format!("queue={}", Time(time)),
    }
}

fn jitter(jitter: Jitter) -> String {
    match jitter {
        Jitter::None => "jitter=none".to_owned(),
        Jitter::Uniform(most) => format!("jitter=uniform:{}", Time(most)),
        Jitter::Normal(deviation) => format!("jitter=normal:{}", Time(deviation)),
    }
}

fn ping(key: &str, ping: Option<&PingRef>) -> String {
    ping.map_or(String::new(), |p| {
        format!("{key}={}:{}{}", p.trace.name, p.carrier, start(&p.trace))
    })
}

fn start(trace: &TraceRef) -> String {
    if trace.start.is_zero() { String::new() } else { format!("@{}", Time(trace.start)) }
}
