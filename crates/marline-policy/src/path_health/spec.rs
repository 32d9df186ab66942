//! Text form of the path health monitor's parameters, such as `prompt`, `multimob`, `prompt,clean=5s,loss=40%`.

use core::fmt::{self, Display, Formatter};
use core::str::FromStr;

use marline_time::Duration;

use super::{LossBase, PathHealthConfig};

/// Error for an invalid specification of the path health monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPathHealthSpec {
    text: String,
}

impl Display for BadPathHealthSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}: expected `prompt` or `multimob`, optionally with `,period=250ms`, `,weight=16%`, \
             `,loss=25%`, `,base=risk` or `=outstanding`, `,retransmissions=50%`, `,least=10`, \
             `,rto=1500ms`, and for `prompt` `,wait=50ms`, `,count=3`, `,clean=2s`, `,probe=600ms`, \
             `,longest-probe=1200ms`; times are 1ms to 1h, shares 1% to 100%, counts 0 to 1000",
            self.text
        )
    }
}

impl core::error::Error for BadPathHealthSpec {}

impl FromStr for PathHealthConfig {
    type Err = BadPathHealthSpec;

    fn from_str(text: &str) -> Result<Self, BadPathHealthSpec> {
        read(text).ok_or_else(|| BadPathHealthSpec { text: text.to_owned() })
    }
}

fn read(text: &str) -> Option<PathHealthConfig> {
    let mut words = text.split(',');
    let mut config = match words.next()? {
        "prompt" => PathHealthConfig::prompt(),
        "multimob" => PathHealthConfig::multimob(),
        _ => return None,
    };
    for word in words {
        let (key, value) = word.split_once('=')?;
        match (key, config.watch.as_mut(), config.recovery.as_mut()) {
            ("period", ..) => config.period = duration(value)?,
            ("weight", ..) => config.weight = parse_share(value)?,
            ("loss", ..) => config.loss = parse_share(value)?,
            ("base", ..) => config.loss_base = parse_base(value)?,
            ("retransmissions", ..) => config.retransmissions = parse_share(value)?,
            ("least", ..) => config.least = count(value)?.into(),
            ("rto", ..) => config.rto = duration(value)?,
            ("wait", Some(watch), _) => watch.wait = duration(value)?,
            ("count", Some(watch), _) => watch.count = count(value)?.max(1),
            ("clean", _, Some(clean)) => clean.period = duration(value)?,
            ("probe", _, Some(clean)) => clean.probe = duration(value)?,
            ("longest-probe", _, Some(clean)) => clean.max_probe_interval = duration(value)?,
            _ => return None,
        }
    }
    Some(config)
}

fn duration(text: &str) -> Option<Duration> {
    let millis: u64 = match text.strip_suffix("ms") {
        Some(number) => number.parse().ok()?,
        None => text.strip_suffix('s')?.parse::<u64>().ok()?.checked_mul(1_000)?,
    };
    (1..=3_600_000).contains(&millis).then_some(Duration::from_millis(millis))
}

fn parse_share(text: &str) -> Option<f64> {
    let percent: u32 = text.strip_suffix('%')?.parse().ok()?;
    (1..=100).contains(&percent).then(|| f64::from(percent) / 100.0)
}

fn count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| *count <= 1_000)
}

fn parse_base(text: &str) -> Option<LossBase> {
    match text {
        "risk" => Some(LossBase::AtRisk),
        "outstanding" => Some(LossBase::Outstanding),
        _ => None,
    }
}

impl Display for PathHealthConfig {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ms = |duration: Duration| duration.as_millis();
        let percent = |share: f64| (share * 100.0).round() as u32;
        f.write_str(if self.watch.is_some() { "prompt" } else { "multimob" })?;
        write!(f, ",period={}ms,weight={}%", ms(self.period), percent(self.weight))?;
        let base = if self.loss_base == LossBase::AtRisk { "risk" } else { "outstanding" };
        write!(f, ",loss={}%,base={base}", percent(self.loss))?;
        write!(f, ",retransmissions={}%", percent(self.retransmissions))?;
        write!(f, ",least={},rto={}ms", self.least, ms(self.rto))?;
        if let Some(watch) = self.watch {
            write!(f, ",wait={}ms,count={}", ms(watch.wait), watch.count)?;
        }
        if let Some(clean) = self.recovery {
            write!(f, ",clean={}ms,probe={}ms", ms(clean.period), ms(clean.probe))?;
            write!(f, ",longest-probe={}ms", ms(clean.max_probe_interval))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_settings_parse_back() {
        let other: PathHealthConfig =
            "prompt,loss=40%,clean=5s,count=2,base=outstanding".parse().expect("a configuration");
        assert!((other.loss - 0.4).abs() < 1e-9);
        assert_eq!(other.recovery.map(|clean| clean.period), Some(Duration::from_secs(5)));
        for config in [PathHealthConfig::prompt(), PathHealthConfig::multimob(), other] {
            assert_eq!(config.to_string().parse(), Ok(config));
        }
        assert_eq!("multimob".parse(), Ok(PathHealthConfig::multimob()));
    }

    #[test]
    fn invalid_settings_are_refused() {
        for text in [
            "",
            "delphi",
            "prompt,loss=0.4",
            "prompt,loss=101%",
            "prompt,weight=0%",
            "prompt,period=0ms",
            "prompt,period=2h",
            "prompt,patience=1s",
            "prompt,count",
            "multimob,wait=50ms",
            "multimob,clean=2s",
        ] {
            let error = text.parse::<PathHealthConfig>().expect_err(text).to_string();
            assert!(error.contains("prompt") && error.contains("longest-probe"), "{error}");
        }
    }
}
