//! Text form of a [`Reason`]: one line of `name=value` pairs, first for the decision, then for each path after a `|`.
//!
//! All numbers, fractions included, parse back to the same value. Instants are written in nanoseconds since the start
//! of the clock, as are durations that decisions compare exactly. Absent values are omitted, and unknown names are
//! ignored.

use core::fmt::{self, Display, Formatter, Write as _};
use core::str::FromStr;

use marline_time::{Duration, Instant, Rate, nanos};

use super::{
    BudgetState, DEGRADED, Grounds, Inputs, MappingQuery, Question, Reason, RepairsDue, Rule,
    Terms, UNREACHABLE,
};
use crate::{
    AddressId, DataRange, Decision, Dsn, Eligibility, Forecast, Health, Mapping, Phase,
    Reinjection, ReinjectionCause, SubflowId, SubflowSet, SubflowView,
};

/// Error for an invalid record, with the name of the missing or invalid field.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BadRecord(pub &'static str);

impl Display for BadRecord {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "cannot parse the decision record: field `{}` is missing or invalid", self.0)
    }
}

impl core::error::Error for BadRecord {}

const RULES: [(Rule, &str); 17] = [
    (Rule::First, "first"),
    (Rule::Spared, "spared"),
    (Rule::LastReceived, "last-received"),
    (Rule::NoRoom, "no-room"),
    (Rule::FullPathFaster, "full-path-faster"),
    (Rule::WouldBlock, "would-block"),
    (Rule::Late, "late"),
    (Rule::End, "end"),
    (Rule::Repair, "repair"),
    (Rule::Explore, "explore"),
    (Rule::RepeatNewest, "repeat-newest"),
    (Rule::Recheck, "recheck"),
    (Rule::Nothing, "nothing"),
    (Rule::NoPath, "no-path"),
    (Rule::Rescue, "rescue"),
    (Rule::RescueWaits, "rescue-waits"),
    (Rule::Unblock, "unblock"),
];
const CAUSES: [(ReinjectionCause, &str); 6] = [
    (ReinjectionCause::UnansweredProbe, "probe"),
    (ReinjectionCause::SubflowRto, "rto"),
    (ReinjectionCause::SubflowClosed, "closed"),
    (ReinjectionCause::DataRto, "data-rto"),
    (ReinjectionCause::Policy, "policy"),
    (ReinjectionCause::Loss, "loss"),
];
const HEALTH_NAMES: [(Health, &str); 3] =
    [(Health::Usable, "usable"), (DEGRADED, "degraded"), (UNREACHABLE, "unreachable")];
const PHASES: [Phase; 3] = [Phase::Open, Phase::Recovery, Phase::Loss];

fn name_of<T: PartialEq>(names: &[(T, &'static str)], value: &T) -> &'static str {
    names.iter().find(|(of, _)| of == value).map_or("", |(_, name)| name)
}

fn find_by_name<T: Copy>(names: &[(T, &str)], name: &str) -> Option<T> {
    names.iter().find(|(_, of)| *of == name).map(|(value, _)| *value)
}

impl Rule {
    /// Name of the rule in a record.
    #[must_use]
    pub fn name(self) -> &'static str {
        name_of(&RULES, &self)
    }
}

impl Reason {
    /// The line to log, without a line break.
    #[must_use]
    pub fn record(&self) -> String {
        let mut line = Line(String::new());
        line.push_field("question", question_text(&self.question));
        line.push_field("decision", decision_text(&self.decision));
        let also: Vec<String> = self.more_ranges.iter().map(range_text).collect();
        line.put_list("also", &also);
        line.put_grounds(&self.grounds);
        line.put_inputs(&self.inputs);
        for path in &self.inputs.paths {
            line.0.push_str(" |");
            line.put_path(path);
        }
        line.0
    }

    /// Parses a logged line.
    ///
    /// # Errors
    /// If a field is missing or invalid.
    pub fn parse(line: &str) -> Result<Reason, BadRecord> {
        let mut parts = line.split('|');
        let general = Fields(parts.next().unwrap_or_default());
        let mut inputs = general.inputs()?;
        inputs.paths = parts.map(|part| Fields(part).path()).collect::<Result<_, _>>()?;
        Ok(Reason {
            question: general.read_field("question", read_question)?,
            decision: general.read_field("decision", read_decision)?,
            more_ranges: general.list("also", read_range)?,
            grounds: general.read_grounds()?,
            inputs,
        })
    }
}

/// A line being written.
struct Line(String);

impl Line {
    fn push_field(&mut self, name: &str, value: impl Display) {
        let space = if self.0.is_empty() { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{space}{name}={value}");
    }

    fn put_optional(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.push_field(name, value);
        }
    }

    fn put_list(&mut self, name: &str, values: &[String]) {
        if !values.is_empty() {
            self.push_field(name, values.join(","));
        }
    }

    fn put_grounds(&mut self, grounds: &Grounds) {
        self.push_field("rule", grounds.rule.name());
        self.put_optional("path", grounds.path.map(|id| id.0));
        self.put_optional("other", grounds.other.map(|id| id.0));
        self.put_optional("arrives_us", grounds.arrives_us);
        self.put_optional("other_us", grounds.other_us);
        self.put_optional("other_late_us", grounds.other_late_us);
        self.put_optional("gain_us", grounds.gain_us);
        self.put_optional("price_us", grounds.price_us);
    }

    fn put_inputs(&mut self, inputs: &Inputs) {
        self.push_field("now_ns", inputs.now.as_nanos());
        self.push_field("unsent", range_text(&inputs.unsent));
        self.push_field("written", inputs.written.0);
        self.push_field("una", inputs.data_una.0);
        self.push_field("window_end", inputs.window_end.0);
        self.push_field("send_limit", inputs.send_limit);
        self.push_field("repairs", u8::from(inputs.repairs));
        self.push_field("spent", inputs.spending.spent);
        self.push_field("unlimited", u8::from(inputs.spending.unlimited));
        let path_budget = |(id, spent): &(SubflowId, f32)| format!("{}:{spent}", id.0);
        let path_budgets: Vec<String> =
            inputs.spending.path_budgets.iter().map(path_budget).collect();
        self.put_list("path-budgets", &path_budgets);
        self.push_field("patience_ns", nanos(inputs.spending.terms.patience));
        self.push_field("metered_bits_per_s", inputs.spending.terms.metered_rate.bits_per_s());
        self.push_field("wake_ns", nanos(inputs.spending.terms.wake));
        let due = inputs.spending.repairs_due;
        self.put_optional(
            "due",
            due.map(|due| format!("{}:{}", range_text(&due.range), due.count)),
        );
        let asked: Vec<String> =
            inputs.asked.iter().map(|(query, answer)| query_text(query, answer.as_ref())).collect();
        self.put_list("asked", &asked);
    }

    fn put_path(&mut self, path: &SubflowView) {
        let forecast = &path.forecast;
        self.push_field("id", path.id.0);
        self.push_field("backup", u8::from(path.backup));
        self.push_field("metered", u8::from(path.metered));
        self.push_field("limited", u8::from(path.limited));
        self.push_field("wake_share", path.wake_share);
        self.push_field("health", name_of(&HEALTH_NAMES, &path.health));
        self.push_field("phase", path.phase.name());
        self.push_field("takes", eligibility_text(path.eligibility));
        self.push_field("mss", path.mss);
        self.push_field("cwnd", path.cwnd);
        self.put_optional("ssthresh", Some(path.ssthresh).filter(|bytes| *bytes != u64::MAX));
        self.push_field("in_flight", path.bytes_in_flight);
        self.push_field("lost", path.bytes_queued);
        self.put_optional("srtt_ns", path.srtt.map(nanos));
        self.put_optional("min_rtt_ns", path.min_rtt.map(nanos));
        self.put_optional("delivery_bits_per_s", path.delivery_rate.map(Rate::bits_per_s));
        let [p50, p90, p99] = forecast.answers_us;
        self.push_field("p50_us", p50);
        self.push_field("p90_us", p90);
        self.push_field("p99_us", p99);
        self.put_list("multiples", &forecast.multiples.map(|multiple| multiple.to_string()));
        self.push_field("troubles_per_s", forecast.troubles);
        self.push_field("untroubled_ms", forecast.since_trouble_ms);
        self.push_field("queued_us", forecast.queued_us);
        self.push_field("idle_us", forecast.idle_us);
        self.put_optional("train_bits_per_s", forecast.rate.map(Rate::bits_per_s));
        self.put_optional("overdue_ns", path.overdue_at.map(Instant::as_nanos));
        self.put_optional("newest_ns", path.newest_sent_at.map(Instant::as_nanos));
        self.push_field("sent_ns", path.last_sent_at.as_nanos());
        self.push_field("heard_ns", path.last_rx_at.as_nanos());
    }
}

fn range_text(range: &DataRange) -> String {
    format!("{}-{}", range.start.0, range.end.0)
}

fn question_text(question: &Question) -> String {
    match question {
        Question::Next => "next".to_owned(),
        Question::Again(item) => {
            let (range, carried_by) = (range_text(&item.range), item.carried_by.0);
            let cause = name_of(&CAUSES, &item.cause);
            format!("again:{range}:{carried_by}:{cause}:{}", item.since.as_nanos())
        }
        Question::WindowBlocked(picked) => format!("window:{}", picked.0),
        Question::BufferBlocked => "buffer".to_owned(),
    }
}

fn read_question(text: &str) -> Option<Question> {
    let parts: Vec<&str> = text.split(':').collect();
    Some(match parts[..] {
        ["next"] => Question::Next,
        ["buffer"] => Question::BufferBlocked,
        ["window", picked] => Question::WindowBlocked(read_id(picked)?),
        ["again", range, carried_by, cause, since] => Question::Again(Reinjection {
            range: read_range(range)?,
            carried_by: SubflowSet(carried_by.parse().ok()?),
            cause: find_by_name(&CAUSES, cause)?,
            since: read_instant(since)?,
        }),
        _ => return None,
    })
}

fn decision_text(decision: &Decision) -> String {
    let on =
        |name, subflow: &SubflowId, range| format!("{name}:{}:{}", subflow.0, range_text(range));
    match decision {
        Decision::Send { subflow, range } => on("send", subflow, range),
        Decision::SendRun { subflow, range } => on("run", subflow, range),
        Decision::Repair { subflow, range } => on("repair", subflow, range),
        Decision::RepeatNewest { subflow } => format!("newest:{}", subflow.0),
        Decision::Wait => "wait".to_owned(),
        Decision::WaitUntil(at) => format!("wait:{}", at.as_nanos()),
    }
}

fn read_decision(text: &str) -> Option<Decision> {
    let parts: Vec<&str> = text.split(':').collect();
    Some(match parts[..] {
        ["wait"] => Decision::Wait,
        ["wait", at] => Decision::WaitUntil(read_instant(at)?),
        ["newest", subflow] => Decision::RepeatNewest { subflow: read_id(subflow)? },
        [what, subflow, range] => {
            let (subflow, range) = (read_id(subflow)?, read_range(range)?);
            match what {
                "send" => Decision::Send { subflow, range },
                "run" => Decision::SendRun { subflow, range },
                "repair" => Decision::Repair { subflow, range },
                _ => return None,
            }
        }
        _ => return None,
    })
}

fn eligibility_text(eligibility: Eligibility) -> String {
    match eligibility {
        Eligibility::Ready { room } => format!("room:{room}"),
        Eligibility::CwndLimited => "full".to_owned(),
        Eligibility::PacingLimited(at) => format!("paced:{}", at.as_nanos()),
        Eligibility::NotActive => "none".to_owned(),
    }
}

fn read_eligibility(text: &str) -> Option<Eligibility> {
    Some(match text.split_once(':') {
        Some(("room", room)) => Eligibility::Ready { room: room.parse().ok()? },
        Some(("paced", at)) => Eligibility::PacingLimited(read_instant(at)?),
        None if text == "full" => Eligibility::CwndLimited,
        None if text == "none" => Eligibility::NotActive,
        _ => return None,
    })
}

fn query_text(query: &MappingQuery, answer: Option<&Mapping>) -> String {
    let on = |name, subflow: &SubflowId, at: &Dsn| format!("{name}:{}:{}", subflow.0, at.0);
    let query = match query {
        MappingQuery::Oldest => "oldest".to_owned(),
        MappingQuery::Newest => "newest".to_owned(),
        MappingQuery::At(at) => format!("at:{}", at.0),
        MappingQuery::NextNotOn(subflow, from) => on("next", subflow, from),
        MappingQuery::LastNotOn(subflow, before) => on("last", subflow, before),
    };
    match answer {
        Some(Mapping { range, carried_by, delivered }) => {
            let delivered = if *delivered { ":delivered" } else { "" };
            format!("{query}>{}:{}{delivered}", range_text(range), carried_by.0)
        }
        None => format!("{query}>none"),
    }
}

fn read_query(text: &str) -> Option<(MappingQuery, Option<Mapping>)> {
    let (query, answer) = text.split_once('>')?;
    let parts: Vec<&str> = query.split(':').collect();
    let query = match parts[..] {
        ["oldest"] => MappingQuery::Oldest,
        ["newest"] => MappingQuery::Newest,
        ["at", at] => MappingQuery::At(read_dsn(at)?),
        ["next", subflow, from] => MappingQuery::NextNotOn(read_id(subflow)?, read_dsn(from)?),
        ["last", subflow, before] => MappingQuery::LastNotOn(read_id(subflow)?, read_dsn(before)?),
        _ => return None,
    };
    if answer == "none" {
        return Some((query, None));
    }
    let (range, carriers) = answer.split_once(':')?;
    let (carriers, delivered) = match carriers.strip_suffix(":delivered") {
        Some(carriers) => (carriers, true),
        None => (carriers, false),
    };
    let carried_by = SubflowSet(carriers.parse().ok()?);
    Some((query, Some(Mapping { range: read_range(range)?, carried_by, delivered })))
}

fn read_id(text: &str) -> Option<SubflowId> {
    text.parse().ok().filter(|id| *id < SubflowSet::CAPACITY).map(SubflowId)
}

fn read_dsn(text: &str) -> Option<Dsn> {
    text.parse().ok().map(Dsn)
}

fn read_instant(text: &str) -> Option<Instant> {
    text.parse().ok().map(Instant::from_nanos)
}

fn read_range(text: &str) -> Option<DataRange> {
    let (start, end) = text.split_once('-')?;
    Some(DataRange::new(read_dsn(start)?, read_dsn(end)?))
}

fn read_flag(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn read_fraction(text: &str) -> Option<f32> {
    text.parse().ok().filter(|number: &f32| !number.is_nan())
}

fn read_path_budget(text: &str) -> Option<(SubflowId, f32)> {
    let (id, spent) = text.split_once(':')?;
    Some((read_id(id)?, read_fraction(spent)?))
}

fn read_due(text: &str) -> Option<RepairsDue> {
    let (range, count) = text.split_once(':')?;
    Some(RepairsDue { range: read_range(range)?, count: count.parse().ok()? })
}

fn read_time(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_nanos)
}

fn read_rate(text: &str) -> Option<Rate> {
    text.parse().ok().map(Rate::from_bits_per_s)
}

/// A part of a line being parsed.
#[derive(Copy, Clone)]
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn text(self, name: &str) -> Option<&'a str> {
        self.0.split_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    }

    fn read_field<T>(
        self,
        name: &'static str,
        read: impl Fn(&'a str) -> Option<T>,
    ) -> Result<T, BadRecord> {
        self.text(name).and_then(read).ok_or(BadRecord(name))
    }

    fn number<T: FromStr>(self, name: &'static str) -> Result<T, BadRecord> {
        self.read_field(name, |text| text.parse().ok())
    }

    /// Reads a value that may be absent.
    fn read_optional<T>(
        self,
        name: &'static str,
        read: impl Fn(&'a str) -> Option<T>,
    ) -> Result<Option<T>, BadRecord> {
        self.text(name).map(|text| read(text).ok_or(BadRecord(name))).transpose()
    }

    fn parse_optional_number<T: FromStr>(self, name: &'static str) -> Result<Option<T>, BadRecord> {
        self.read_optional(name, |text| text.parse().ok())
    }

    fn list<T>(
        self,
        name: &'static str,
        read: impl Fn(&'a str) -> Option<T>,
    ) -> Result<Vec<T>, BadRecord> {
        let Some(text) = self.text(name) else { return Ok(Vec::new()) };
        text.split(',').map(|part| read(part).ok_or(BadRecord(name))).collect()
    }

    fn read_grounds(self) -> Result<Grounds, BadRecord> {
        Ok(Grounds {
            rule: self.read_field("rule", |text| find_by_name(&RULES, text))?,
            path: self.read_optional("path", read_id)?,
            other: self.read_optional("other", read_id)?,
            arrives_us: self.parse_optional_number("arrives_us")?,
            other_us: self.parse_optional_number("other_us")?,
            other_late_us: self.parse_optional_number("other_late_us")?,
            gain_us: self.parse_optional_number("gain_us")?,
            price_us: self.parse_optional_number("price_us")?,
        })
    }

    /// Reads all inputs except the paths.
    fn inputs(self) -> Result<Inputs, BadRecord> {
        Ok(Inputs {
            now: self.read_field("now_ns", read_instant)?,
            unsent: self.read_field("unsent", read_range)?,
            written: self.read_field("written", read_dsn)?,
            data_una: self.read_field("una", read_dsn)?,
            window_end: self.read_field("window_end", read_dsn)?,
            send_limit: self.number("send_limit")?,
            repairs: self.read_field("repairs", read_flag)?,
            spending: BudgetState {
                spent: self.read_field("spent", read_fraction)?,
                unlimited: self.read_field("unlimited", read_flag)?,
                path_budgets: self.list("path-budgets", read_path_budget)?,
                terms: Terms {
                    patience: self.read_optional("patience_ns", read_time)?.unwrap_or_default(),
                    metered_rate: self
                        .read_optional("metered_bits_per_s", read_rate)?
                        .unwrap_or(Rate::ZERO),
                    wake: self.read_optional("wake_ns", read_time)?.unwrap_or_default(),
                },
                repairs_due: self.read_optional("due", read_due)?,
            },
            paths: Vec::new(),
            asked: self.list("asked", read_query)?,
        })
    }

    fn path(self) -> Result<SubflowView, BadRecord> {
        let multiples = self.list("multiples", read_fraction)?;
        Ok(SubflowView {
            id: self.read_field("id", read_id)?,
            local_id: AddressId(0),
            remote_id: AddressId(0),
            backup: self.read_field("backup", read_flag)?,
            // Older records have no path costs.
            metered: self.read_optional("metered", read_flag)?.unwrap_or(false),
            limited: self.read_optional("limited", read_flag)?.unwrap_or(false),
            wake_share: self.read_optional("wake_share", read_fraction)?.unwrap_or(0.0),
            health: self.read_field("health", |text| find_by_name(&HEALTH_NAMES, text))?,
            phase: self.read_field("phase", |text| {
                PHASES.into_iter().find(|phase| phase.name() == text)
            })?,
            eligibility: self.read_field("takes", read_eligibility)?,
            mss: self.number("mss")?,
            cwnd: self.number("cwnd")?,
            ssthresh: self.parse_optional_number("ssthresh")?.unwrap_or(u64::MAX),
            bytes_in_flight: self.number("in_flight")?,
            bytes_queued: self.number("lost")?,
            bytes_copied: 0,
            bytes_sent: 0,
            bytes_received: 0,
            srtt: self.read_optional("srtt_ns", read_time)?,
            rttvar: Duration::ZERO,
            min_rtt: self.read_optional("min_rtt_ns", read_time)?,
            delivery_rate: self.read_optional("delivery_bits_per_s", read_rate)?,
            forecast: Forecast {
                answers_us: [
                    self.number("p50_us")?,
                    self.number("p90_us")?,
                    self.number("p99_us")?,
                ],
                multiples: multiples.try_into().map_err(|_| BadRecord("multiples"))?,
                troubles: self.read_field("troubles_per_s", read_fraction)?,
                since_trouble_ms: self.number("untroubled_ms")?,
                queued_us: self.number("queued_us")?,
                idle_us: self.number("idle_us")?,
                rate: self.read_optional("train_bits_per_s", read_rate)?,
            },
            overdue_at: self.read_optional("overdue_ns", read_instant)?,
            newest_sent_at: self.read_optional("newest_ns", read_instant)?,
            bytes_since_loss: 0,
            bytes_between_losses: 0,
            last_sent_at: self.read_field("sent_ns", read_instant)?,
            last_rx_at: self.read_field("heard_ns", read_instant)?,
            last_new_at: Instant::ZERO,
        })
    }
}
