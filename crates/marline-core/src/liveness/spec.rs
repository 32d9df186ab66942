//! Textual form of the liveness configuration, for configuration files and experiments: `multimob`,
//! `probing,after=80ms,count=2`, `idle=10s,interval=1s,count=2`.

use core::fmt::{self, Display, Formatter};
use core::str::FromStr;

use marline_time::Duration;

use super::{LoneKeepalive, Probing, ReceiveTimer};

/// Error in the text of a receive timer or a keepalive, with the expected form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSilenceSpec {
    text: String,
    expected: &'static str,
}

impl Display for BadSilenceSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: expected {}", self.text, self.expected)
    }
}

impl core::error::Error for BadSilenceSpec {}

const TIMER: &str = "`multimob` or `probing`, optionally with `,unknown-rto=1500ms`, `,floor=500ms`, \
                     `,ceiling=10s`, `,refresh=10s`, and for probing `,after=50ms`, `,wait=50ms`, \
                     `,count=3`; times are 1ms to 1h, counts 1 to 20";
const KEEPALIVE: &str = "`idle=10s,interval=1s,count=2` or some of these; times are 1ms to 1h, \
                         the count is 1 to 20";

impl FromStr for ReceiveTimer {
    type Err = BadSilenceSpec;

    fn from_str(text: &str) -> Result<Self, BadSilenceSpec> {
        timer(text).ok_or_else(|| BadSilenceSpec { text: text.to_owned(), expected: TIMER })
    }
}

fn timer(text: &str) -> Option<ReceiveTimer> {
    let mut words = text.split(',');
    let mut timer = match words.next()? {
        "multimob" => ReceiveTimer::multimob(),
        "probing" => ReceiveTimer::with_probes(),
        _ => return None,
    };
    for word in words {
        let (key, value) = word.split_once('=')?;
        match (key, timer.probing.as_mut()) {
            ("unknown-rto", _) => timer.unknown_rto = duration(value)?,
            ("floor", _) => timer.floor = duration(value)?,
            ("ceiling", _) => timer.ceiling = duration(value)?,
            ("refresh", _) => timer.refresh = duration(value)?,
            ("after", Some(probing)) => probing.after = duration(value)?,
            ("wait", Some(probing)) => probing.wait = duration(value)?,
            ("count", Some(probing)) => probing.count = count(value)?,
            _ => return None,
        }
    }
    Some(timer)
}

impl FromStr for LoneKeepalive {
    type Err = BadSilenceSpec;

    fn from_str(text: &str) -> Result<Self, BadSilenceSpec> {
        keepalive(text).ok_or_else(|| BadSilenceSpec { text: text.to_owned(), expected: KEEPALIVE })
    }
}

fn keepalive(text: &str) -> Option<LoneKeepalive> {
    let mut keepalive = LoneKeepalive::default();
    for word in text.split(',') {
        let (key, value) = word.split_once('=')?;
        match key {
            "idle" => keepalive.idle = duration(value)?,
            "interval" => keepalive.interval = duration(value)?,
            "count" => keepalive.count = count(value)?,
            _ => return None,
        }
    }
    Some(keepalive)
}

fn duration(text: &str) -> Option<Duration> {
    let millis: u64 = match text.strip_suffix("ms") {
        Some(number) => number.parse().ok()?,
        None => text.strip_suffix('s')?.parse::<u64>().ok()?.checked_mul(1_000)?,
    };
    (1..=3_600_000).contains(&millis).then_some(Duration::from_millis(millis))
}

fn count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| (1..=20).contains(count))
}

/// Formats the time in whole milliseconds, or seconds.
struct Time(Duration);

impl Display for Time {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if millis.is_multiple_of(1_000) {
            write!(f, "{}s", millis / 1_000)
        } else {
            write!(f, "{millis}ms")
        }
    }
}

impl Display for ReceiveTimer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(if self.probing.is_some() { "probing" } else { "multimob" })?;
        write!(f, ",unknown-rto={},floor={}", Time(self.unknown_rto), Time(self.floor))?;
        write!(f, ",ceiling={},refresh={}", Time(self.ceiling), Time(self.refresh))?;
        let Some(Probing { after, wait, count }) = self.probing else { return Ok(()) };
        write!(f, ",after={},wait={},count={count}", Time(after), Time(wait))
    }
}

impl Display for LoneKeepalive {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let LoneKeepalive { idle, interval, count } = *self;
        write!(f, "idle={},interval={},count={count}", Time(idle), Time(interval))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_settings_parse_back() {
        let other: ReceiveTimer =
            "probing,floor=700ms,count=2,ceiling=3s".parse().expect("a receive timer");
        assert_eq!(other.probing.map(|probing| probing.count), Some(2));
        assert_eq!((other.floor.as_millis(), other.ceiling.as_millis()), (700, 3_000));
        for timer in [ReceiveTimer::multimob(), ReceiveTimer::with_probes(), other] {
            assert_eq!(timer.to_string().parse(), Ok(timer));
        }
        assert_eq!("multimob".parse(), Ok(ReceiveTimer::multimob()));
        let keepalive: LoneKeepalive = "idle=300ms".parse().expect("a keepalive");
        assert_eq!(keepalive.idle, Duration::from_millis(300));
        assert_eq!(keepalive.to_string().parse(), Ok(keepalive));
    }

    #[test]
    fn invalid_settings_are_refused() {
        for text in [
            "",
            "seed",
            "multimob,after=50ms",
            "probing,after=0ms",
            "probing,after=50",
            "probing,count=0",
            "probing,count=21",
            "probing,floor",
            "probing,floor=4000s",
            "probing,floor=99999999999999999999s",
            "probing,,",
        ] {
            let error = text.parse::<ReceiveTimer>().expect_err(text);
            assert!(error.to_string().contains("unknown-rto"), "{error}");
        }
        for text in ["", "10s", "idle=10s;count=2", "idle=10s,count=0"] {
            text.parse::<LoneKeepalive>().expect_err(text);
        }
    }
}
