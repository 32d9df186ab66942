//! Quotas: monthly byte limits of a credential or of a path, and their text forms.
//!
//! A month begins on the configured day at 00:00 UTC. With local time, one hour a year would be counted twice and
//! another not at all, and a server and its clients would disagree on the start. If the month has no such day, it
//! begins on its last day. The current time is always an argument.

use std::fmt;
use std::str::FromStr;

/// Default percentage of a quota at which a warning is logged and the rest is used sparingly.
const SOFT_PERCENT: u8 = 80;
const DAY_S: u64 = 86_400;
/// Units of bytes, largest first.
const UNITS: [(&str, u64); 5] =
    [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000), ("B", 1)];

/// Monthly byte limit: `BYTES[,soft=PERCENT][,day=DAY]`, such as `50GB,soft=90%,day=15`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ByteQuota {
    /// Bytes, at least 1.
    pub bytes: u64,
    /// Percentage at which the rest of the quota is used sparingly, 1 to 100.
    pub soft_percent: u8,
    /// Day of the month on which the period begins, 1 to 31.
    pub day: u8,
}

/// Usage relative to a quota.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaState {
    /// Below the soft limit.
    #[default]
    Within,
    /// At or above the soft limit.
    BeyondSoftLimit,
    /// Used up.
    UsedUp,
}

/// One month of a quota, in seconds since 1970.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Period {
    /// First second of the month.
    pub start_unix_s: u64,
    /// First second of the next month.
    pub end_unix_s: u64,
}

/// Error in a quota's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "quota {text:?}: {problem} (write BYTES[,soft=PERCENT][,day=DAY] with a unit of B, kB, MB, GB or TB, for \
     example 50GB,soft=80%,day=1)"
)]
pub struct BadQuota {
    text: String,
    problem: &'static str,
}

impl ByteQuota {
    /// Compares the usage with the quota.
    #[must_use]
    pub fn state(&self, used_bytes: u64) -> QuotaState {
        let share = u128::from(used_bytes) * 100;
        if used_bytes >= self.bytes {
            QuotaState::UsedUp
        } else if share >= u128::from(self.bytes) * u128::from(self.soft_percent) {
            QuotaState::BeyondSoftLimit
        } else {
            QuotaState::Within
        }
    }

    /// Returns the month that contains this time.
    #[must_use]
    pub fn period(&self, now_unix_s: u64) -> Period {
        period(self.day, now_unix_s)
    }

    /// Returns the usage as text: `41.2GB of 50GB (82%) until 2026-12-01 UTC`.
    #[must_use]
    pub fn text(&self, used_bytes: u64, now_unix_s: u64) -> String {
        let percent = u128::from(used_bytes) * 100 / u128::from(self.bytes);
        let until = date(self.period(now_unix_s).end_unix_s);
        let (used, all) = (short_bytes(used_bytes), exact_bytes(self.bytes));
        format!("{used} of {all} ({percent}%) until {until} UTC")
    }

    /// Returns the reason for refusing its owner after the quota is used up. `whose` is `its` or names the owner.
    #[must_use]
    pub fn refusal(&self, whose: &str, now_unix_s: u64) -> String {
        let until = date(self.period(now_unix_s).end_unix_s);
        format!("{whose} quota of {} is used up until {until} UTC", exact_bytes(self.bytes))
    }
}

impl FromStr for ByteQuota {
    type Err = BadQuota;

    fn from_str(text: &str) -> Result<ByteQuota, BadQuota> {
        let wrong = |why| BadQuota { text: text.to_owned(), problem: why };
        let mut parts = text.split(',');
        let bytes = parts.next().and_then(parse_bytes);
        let bytes = bytes.ok_or_else(|| wrong("expected a number of bytes above 0"))?;
        let mut quota = ByteQuota { bytes, soft_percent: SOFT_PERCENT, day: 1 };
        for part in parts {
            match part.split_once('=') {
                Some(("soft", share)) => {
                    let share = share.strip_suffix('%').and_then(|share| share.parse().ok());
                    let share = share.filter(|share| (1..=100).contains(share));
                    quota.soft_percent = share.ok_or_else(|| wrong("soft must be 1% to 100%"))?;
                }
                Some(("day", day)) => {
                    let day = day.parse().ok().filter(|day| (1..=31).contains(day));
                    quota.day = day.ok_or_else(|| wrong("day must be 1 to 31"))?;
                }
                _ => return Err(wrong("expected soft= or day= after the comma")),
            }
        }
        Ok(quota)
    }
}

impl fmt::Display for ByteQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&exact_bytes(self.bytes))?;
        if self.soft_percent != SOFT_PERCENT {
            write!(f, ",soft={}%", self.soft_percent)?;
        }
        if self.day != 1 {
            write!(f, ",day={}", self.day)?;
        }
        Ok(())
    }
}

/// `[CLIENT@]VALUE`: a value for one client, or for all clients that have no value of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerClient<T> {
    /// The client, or `None` for all others.
    pub client: Option<String>,
    /// Value for the client.
    pub value: T,
}

impl<T> PerClient<T> {
    /// Returns the value for this client.
    pub fn find<'a>(rules: &'a [PerClient<T>], client: &str) -> Option<&'a T> {
        let own = rules.iter().find(|rule| rule.client.as_deref() == Some(client));
        own.or_else(|| rules.iter().find(|rule| rule.client.is_none())).map(|rule| &rule.value)
    }

    /// Returns a client that two of these rules name, if there is one. `*` stands for all others.
    #[must_use]
    pub fn duplicate_client(rules: &[PerClient<T>]) -> Option<&str> {
        let later = |at: usize| rules[at + 1..].iter().any(|rule| rule.client == rules[at].client);
        let at = (0..rules.len()).find(|at| later(*at))?;
        Some(rules[at].client.as_deref().unwrap_or("*"))
    }
}

impl<T: FromStr<Err: fmt::Display>> FromStr for PerClient<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (client, value) = match text.split_once('@') {
            Some(("", _)) => return Err(format!("{text:?}: the client's name is empty")),
            Some((client, value)) => (Some(client.to_owned()), value),
            None => (None, text),
        };
        let value = value.parse().map_err(|error: T::Err| format!("{value:?}: {error}"))?;
        Ok(PerClient { client, value })
    }
}

impl<T: fmt::Display> fmt::Display for PerClient<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(client) = &self.client {
            write!(f, "{client}@")?;
        }
        self.value.fmt(f)
    }
}

/// Parses bytes with a unit, such as `50GB`. Returns `None` if the text is invalid or the number is 0.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let bytes = number.parse::<u64>().ok()?.checked_mul(*factor)?;
    (1..=i64::MAX as u64).contains(&bytes).then_some(bytes)
}

/// Formats bytes in the largest unit that leaves a whole number.
#[must_use]
pub fn exact_bytes(bytes: u64) -> String {
    let (name, factor) =
        UNITS.into_iter().find(|(_, factor)| bytes.is_multiple_of(*factor)).unwrap_or(("B", 1));
    format!("{}{name}", bytes / factor)
}

/// Formats bytes in a few characters, with one decimal.
#[must_use]
pub fn short_bytes(bytes: u64) -> String {
    match UNITS.into_iter().find(|(_, factor)| bytes >= *factor) {
        Some((name, factor)) if factor > 1 => {
            let tenths = u128::from(bytes) * 10 / u128::from(factor);
            format!("{}.{}{name}", tenths / 10, tenths % 10)
        }
        _ => format!("{bytes}B"),
    }
}

/// Returns the month that begins on this day and contains this time.
#[must_use]
pub fn period(day: u8, now_unix_s: u64) -> Period {
    let (year, month, today) = date_of_day(now_unix_s / DAY_S);
    let begins = |year: u64, month: u64| {
        days_before(year, month) + u64::from(day).min(days_in_month(year, month)) - 1
    };
    let begun = today >= u64::from(day).min(days_in_month(year, month));
    let (first, next) = if begun {
        ((year, month), following(year, month))
    } else {
        (previous_month(year, month), (year, month))
    };
    Period {
        start_unix_s: begins(first.0, first.1) * DAY_S,
        end_unix_s: begins(next.0, next.1) * DAY_S,
    }
}

/// Returns the date in UTC: `2026-12-01`.
#[must_use]
pub fn date(unix_s: u64) -> String {
    let (year, month, day) = date_of_day(unix_s / DAY_S);
    format!("{year:04}-{month:02}-{day:02}")
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const fn days_in_month(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + is_leap(year) as u64,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the previous month, but never one before 1970-01.
const fn previous_month(year: u64, month: u64) -> (u64, u64) {
    match (year, month) {
        (1970, 1) => (1970, 1),
        (_, 1) => (year - 1, 12),
        _ => (year, month - 1),
    }
}

const fn following(year: u64, month: u64) -> (u64, u64) {
    if month == 12 { (year + 1, 1) } else { (year, month + 1) }
}

/// Returns the number of days from 1970 to the first day of a year.
const fn days_before_year(year: u64) -> u64 {
    let past = year - 1;
    // Leap years up to 1969: 477.
    365 * (year - 1970) + past / 4 - past / 100 + past / 400 - 477
}

fn days_before(year: u64, month: u64) -> u64 {
    days_before_year(year) + (1..month).map(|month| days_in_month(year, month)).sum::<u64>()
}

/// Returns the year, month and day of a day since 1970.
fn date_of_day(days: u64) -> (u64, u64, u64) {
    // Assumes 366 days per year, so the estimate is never too late. The loop corrects it.
    let mut year = 1970 + days / 366;
    while days_before_year(year + 1) <= days {
        year += 1;
    }
    let mut rest = days - days_before_year(year);
    let mut month = 1;
    while rest >= days_in_month(year, month) {
        rest -= days_in_month(year, month);
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-24 12:00 UTC.
    const NOW: u64 = 1_795_521_600;

    #[test]
    fn text_forms() {
        for text in ["50GB", "1500MB,soft=90%,day=15", "1B", "3TB,day=31", "999kB,soft=100%"] {
            assert_eq!(text.parse::<ByteQuota>().unwrap().to_string(), text);
        }
        assert_eq!("2000MB,soft=80%,day=1".parse::<ByteQuota>().unwrap().to_string(), "2GB");
        for bad in [
            "",
            "50",
            "GB",
            "0GB",
            "-1GB",
            "1.5GB",
            "50gb",
            "50GB,",
            "50GB,soft=0%",
            "50GB,soft=80",
            "50GB,soft=101%",
            "50GB,day=0",
            "50GB,day=32",
            "50GB,hard=1",
            "9999999999TB",
        ] {
            assert!(bad.parse::<ByteQuota>().is_err(), "{bad}");
        }
        let rule: PerClient<ByteQuota> = "laptop@5GB,day=3".parse().unwrap();
        assert_eq!((rule.to_string().as_str(), rule.value.day), ("laptop@5GB,day=3", 3));
        for bad in ["@5GB", "a@", "a@b@5GB", "laptop"] {
            assert!(bad.parse::<PerClient<ByteQuota>>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_client_has_its_own_rule_or_that_of_all_others() {
        let rules: Vec<PerClient<usize>> =
            ["4", "laptop@2", "phone@1"].iter().map(|text| text.parse().unwrap()).collect();
        let of = |client| PerClient::find(&rules, client).copied();
        assert_eq!((of("laptop"), of("phone"), of("other")), (Some(2), Some(1), Some(4)));
        assert_eq!(PerClient::find(&rules[1..], "other"), None);
        assert_eq!(PerClient::duplicate_client(&rules), None);
        let twice: Vec<PerClient<usize>> = ["4", "a@2", "5"].map(|t| t.parse().unwrap()).into();
        assert_eq!(PerClient::duplicate_client(&twice), Some("*"));
    }

    #[test]
    fn limits_apply_at_the_exact_byte() {
        let quota: ByteQuota = "1000B,soft=80%".parse().unwrap();
        for (used, standing) in [
            (0, QuotaState::Within),
            (799, QuotaState::Within),
            (800, QuotaState::BeyondSoftLimit),
            (999, QuotaState::BeyondSoftLimit),
            (1_000, QuotaState::UsedUp),
            (u64::MAX, QuotaState::UsedUp),
        ] {
            assert_eq!(quota.state(used), standing, "{used}");
        }
        let never_soft: ByteQuota = "1000B,soft=100%".parse().unwrap();
        assert_eq!(never_soft.state(999), QuotaState::Within);
    }

    #[test]
    fn every_day_of_two_centuries_follows_the_one_before() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..80_000 {
            assert_eq!(date_of_day(days), (year, month, day));
            assert_eq!(days_before(year, month) + day - 1, days);
            day += 1;
            if day > days_in_month(year, month) {
                (year, month) = following(year, month);
                day = 1;
            }
        }
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!((date(NOW), date(NOW + 7 * DAY_S)), ("2026-11-24".into(), "2026-12-01".into()));
    }

    fn months(day: u8, now: &str) -> (String, String) {
        let now = (0..40_000).map(|days| days * DAY_S).find(|s| date(*s) == now).unwrap();
        let Period { start_unix_s, end_unix_s } = period(day, now + DAY_S - 1);
        (date(start_unix_s), date(end_unix_s))
    }

    #[test]
    fn a_month_begins_on_its_day_or_on_the_last_day_of_a_shorter_month() {
        for (day, now, start, end) in [
            (1, "2026-11-24", "2026-11-01", "2026-12-01"),
            (1, "2026-12-31", "2026-12-01", "2027-01-01"),
            (15, "2026-11-14", "2026-10-15", "2026-11-15"),
            (15, "2026-11-15", "2026-11-15", "2026-12-15"),
            (15, "2027-01-03", "2026-12-15", "2027-01-15"),
            (31, "2026-02-27", "2026-01-31", "2026-02-28"),
            (31, "2026-02-28", "2026-02-28", "2026-03-31"),
            (31, "2028-02-28", "2028-01-31", "2028-02-29"),
            (31, "2028-02-29", "2028-02-29", "2028-03-31"),
            (30, "2026-03-01", "2026-02-28", "2026-03-30"),
            (31, "2026-11-30", "2026-11-30", "2026-12-31"),
        ] {
            assert_eq!(months(day, now), (start.to_owned(), end.to_owned()), "{day} {now}");
        }
        // A clock that has not been set.
        assert_eq!(period(15, 0).start_unix_s, 14 * DAY_S);
    }

    /// In Europe, daylight saving time changes on 2026-03-29 and 2026-10-25. UTC has no such change.
    #[test]
    fn months_are_contiguous_and_ignore_daylight_saving() {
        for day in 1..=31 {
            let mut at = period(day, 1_767_225_600).start_unix_s;
            for _ in 0..60 {
                let month = period(day, at);
                assert_eq!(month.start_unix_s, at);
                assert!((month.end_unix_s - at).is_multiple_of(DAY_S));
                assert!((28..=31).contains(&((month.end_unix_s - at) / DAY_S)));
                assert_eq!(period(day, month.end_unix_s - 1), month);
                at = month.end_unix_s;
            }
        }
    }

    #[test]
    fn quota_texts_name_use_limit_and_end() {
        let quota: ByteQuota = "50GB".parse().unwrap();
        assert_eq!(quota.text(41_250_000_000, NOW), "41.2GB of 50GB (82%) until 2026-12-01 UTC");
        assert_eq!(quota.refusal("its", NOW), "its quota of 50GB is used up until 2026-12-01 UTC");
        assert_eq!(
            (short_bytes(0), short_bytes(999), short_bytes(1_000)),
            ("0B".into(), "999B".into(), "1.0kB".into())
        );
    }
}
