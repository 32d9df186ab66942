//! Validation of an experiment file; every detectable mistake is reported at its position.

mod answers;
mod workloads;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

use marline::config::{LoneKeepalive, ReceiveTimer};
use marline::paths::PathSpec;

use super::diagnostic::{Diagnostic, KeyPath};
use super::document::{Contestant, ExperimentFile};
use super::raw::{Direction, RawBackground, RawEnd, RawFault, RawFile, RawStop, RawVariant};
use super::values::Bytes;
use crate::emulation::script::{self, ParsedCommand};
use crate::experiment::{
    BackgroundConnection, Experiment, Fault, Moment, Stack, Stop, TimelineConfig, Variant,
    can_be_restored,
};
use crate::policies;
use crate::scenario::{Event, Path, Scenario, Side, check_name, path_number};

/// Range of buffer sizes in bytes of payload.
const BUFFER_RANGE: std::ops::RangeInclusive<u64> = 1..=1 << 30;
/// Default time to wait for the last messages after the planned end.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(30);
/// Modes whose policies cannot be replaced.
const MULTIMOB: [&str; 2] = ["interactive", "multimob"];

/// Collects the mistakes in a file.
struct Checker<'a> {
    text: &'a str,
    diagnostics: Vec<Diagnostic>,
}

impl Checker<'_> {
    fn report(&mut self, key_path: &KeyPath, what: impl Display) {
        self.diagnostics.push(Diagnostic::new(self.text, key_path, what));
    }

    /// Returns a value, or adds a diagnostic at its position.
    fn check_result<T, E: Display>(
        &mut self,
        key_path: &KeyPath,
        result: Result<T, E>,
    ) -> Option<T> {
        result.map_err(|error| self.report(key_path, format!("{error:#}"))).ok()
    }

    /// Returns a required value.
    fn need<T>(
        &mut self,
        table: &KeyPath,
        key: &str,
        example: &str,
        value: Option<T>,
    ) -> Option<T> {
        if value.is_none() {
            self.report(table, format!("`{key}` is missing, for example {key} = {example}"));
        }
        value
    }

    /// Rejects a key that is not allowed here.
    fn refuse<T>(&mut self, table: &KeyPath, key: &str, why: &str, value: Option<&T>) {
        if value.is_some() {
            self.report(&table.key(key), why);
        }
    }
}

/// The experiment of a file.
pub(super) fn check(raw: RawFile, text: &str) -> Result<ExperimentFile, Vec<Diagnostic>> {
    let mut checker = Checker { text, diagnostics: Vec::new() };
    paths(&mut checker, &raw.paths);
    events(&mut checker, &raw.events, &raw.paths);
    let loads = workloads::loads(&mut checker, &raw.workloads);
    let mut moments = Vec::new();
    for (number, raw_fault) in raw.faults.iter().enumerate() {
        moments.extend(fault(&mut checker, number, raw_fault, &raw.paths));
    }
    let background: Vec<BackgroundConnection> = raw
        .background
        .iter()
        .enumerate()
        .map(|(number, raw_flow)| background(&mut checker, number, raw_flow, &raw.paths))
        .collect();
    let contestants = contestants(&mut checker, &raw.variants, &raw.paths);
    let checks = answers::checks(&mut checker, &raw.checks, &loads, &contestants);
    let interval = raw.timelines.map(|time| TimelineConfig::with_interval(time.0));
    checker.check_result(&KeyPath::top_level("timelines"), interval.transpose());
    if !checker.diagnostics.is_empty() {
        return Err(checker.diagnostics);
    }
    let experiment = Experiment {
        scenario: Scenario {
            seed: raw.seed.unwrap_or(1),
            paths: raw.paths,
            client: raw.client,
            server: raw.server,
            events: raw.events,
        },
        loads,
        background,
        faults: moments,
        stops: raw.stops.iter().map(stop).collect(),
        warm_up: raw.warm_up.map_or(Duration::ZERO, |time| time.0),
        patience: raw.patience.map_or(DEFAULT_PATIENCE, |time| time.0),
        trace_dir: None,
    };
    checker.check_result(&KeyPath::default(), experiment.check());
    if !checker.diagnostics.is_empty() {
        return Err(checker.diagnostics);
    }
    let (title, name, text) = (raw.title.unwrap_or_default(), String::new(), String::new());
    let timelines = raw.timelines.map(|time| time.0);
    let axes = Vec::new();
    let qlog = raw.qlog;
    Ok(ExperimentFile { title, experiment, timelines, qlog, contestants, checks, name, text, axes })
}

/// The scenario of a file that has no workload.
pub(super) fn scenario(text: &str) -> Result<Scenario, Vec<Diagnostic>> {
    let scenario: Scenario = toml::from_str(text).map_err(|error| vec![error.into()])?;
    let mut checker = Checker { text, diagnostics: Vec::new() };
    paths(&mut checker, &scenario.paths);
    events(&mut checker, &scenario.events, &scenario.paths);
    if checker.diagnostics.is_empty() {
        checker.check_result(&KeyPath::default(), scenario.check());
    }
    if checker.diagnostics.is_empty() { Ok(scenario) } else { Err(checker.diagnostics) }
}

fn paths(checker: &mut Checker<'_>, paths: &[Path]) {
    if paths.is_empty() {
        checker.report(
            &KeyPath::default(),
            "no [[path]] found; add at least one, with `name` and `link`",
        );
    }
    let mut seen = BTreeSet::new();
    for (number, path) in paths.iter().enumerate() {
        let key_path = KeyPath::top_level("path").at(number);
        checker.check_result(&key_path.key("name"), check_name(&path.name));
        if !seen.insert(&path.name) {
            checker.report(&key_path.key("name"), format!("two paths are named `{}`", path.name));
        }
        let spec: Result<marline_link::DuplexSpec, _> = path.link.parse();
        if let Err(error) = spec {
            let shown = format!("`{}`: {}", error.item, error.problem);
            checker.report(&key_path.key("link"), shown);
        }
        if path.client.is_empty() != path.server.is_empty() {
            checker.report(
                &key_path,
                "only one host has addresses; set them for both, or for neither to have them chosen",
            );
        }
        let given = path.family.filter(|_| !path.client.is_empty());
        let why = "the addresses in `client` and `server` determine the family; remove this key";
        checker.refuse(&key_path, "family", why, given.as_ref());
    }
}

fn events(checker: &mut Checker<'_>, events: &[Event], paths: &[Path]) {
    for (number, event) in events.iter().enumerate() {
        let key_path = KeyPath::top_level("event").at(number);
        checker.check_result(&key_path.key("path"), path_number(paths, &event.path));
        checker.check_result(&key_path.key("at"), script::duration(&event.at));
        checker.check_result(&key_path.key("command"), event.command.parse::<ParsedCommand>());
    }
}

fn fault(
    checker: &mut Checker<'_>,
    number: usize,
    raw: &RawFault,
    paths: &[Path],
) -> Option<Fault> {
    let key_path = KeyPath::top_level("fault").at(number);
    checker.check_result(&key_path.key("path"), path_number(paths, &raw.path));
    let order: Option<ParsedCommand> =
        checker.check_result(&key_path.key("command"), raw.command.parse());
    if raw.lasts.is_some() && order.is_some_and(|order| !can_be_restored(&order)) {
        checker
            .report(&key_path.key("lasts"), "this command cannot have a duration; only `down` can");
    }
    for (key, span) in [("after", raw.after), ("between", raw.between)] {
        if span.is_some_and(|span| span.least.0 > span.most.0) {
            checker
                .report(&key_path.key(key), "the times are reversed; give the earlier one first");
        }
    }
    let moment = match (raw.burst, raw.around_burst, raw.between) {
        (Some(burst), None, None) => {
            let (from, to) = raw.after.map_or((0.0, 0.0), |at| (at.least.ms(), at.most.ms()));
            Moment::InBurst(burst, from, to)
        }
        (None, Some(burst), None) => Moment::AroundBurst(burst),
        (None, None, Some(at)) => Moment::Between(at.least.ms(), at.most.ms()),
        _ => {
            let what = "the time is missing; give one of: burst = 6 (with after = [\"0ms\", \
                \"45ms\"]), around_burst = 6, between = [\"7s\", \"8s\"]";
            checker.report(&key_path, what);
            return None;
        }
    };
    if raw.after.is_some() && raw.burst.is_none() {
        checker.report(&key_path.key("after"), "this key needs `burst`");
    }
    let (path, command) = (raw.path.clone(), raw.command.clone());
    Some(Fault { path, moment, command, lasts: raw.lasts.map(|time| time.0) })
}

fn stop(raw: &RawStop) -> Stop {
    let end = match raw.end {
        RawEnd::Client => Side::Client,
        RawEnd::Server => Side::Server,
    };
    Stop { end, at: raw.at.0, lasts: raw.lasts.0 }
}

fn background(
    checker: &mut Checker<'_>,
    number: usize,
    raw: &RawBackground,
    paths: &[Path],
) -> BackgroundConnection {
    let key_path = KeyPath::top_level("background").at(number);
    checker.check_result(&key_path.key("path"), path_number(paths, &raw.path));
    let congestion = raw.congestion.as_deref().unwrap_or("cubic").to_owned();
    checker.check_result(&key_path.key("congestion"), policies::registry().congestion(&congestion));
    let (from, until) =
        (raw.from.map_or(Duration::ZERO, |time| time.0), raw.until.map(|time| time.0));
    if until.is_some_and(|until| until <= from) {
        checker.report(&key_path.key("until"), "must be later than `from`");
    }
    let is_up = raw.direction == Direction::Up;
    BackgroundConnection { path: raw.path.clone(), congestion, is_up, from, until }
}

fn contestants(
    checker: &mut Checker<'_>,
    variants: &[RawVariant],
    paths: &[Path],
) -> Vec<Contestant> {
    let marline = vec![Stack::Sim, Stack::Live];
    if variants.is_empty() {
        let variant = Variant::new("default");
        return vec![Contestant { variant, stacks: marline }];
    }
    let mut seen = BTreeSet::new();
    let mut contestants = Vec::new();
    for (number, raw) in variants.iter().enumerate() {
        let key_path = KeyPath::top_level("variant").at(number);
        let name = raw.name.trim();
        if name.is_empty() || !seen.insert(name.to_owned()) {
            checker.report(&key_path.key("name"), "expected a name that no earlier variant has");
        }
        for path in &raw.paths {
            let found = path_number(paths, path.split(',').next().unwrap_or_default());
            checker.check_result(&key_path.key("paths"), found);
            checker.check_result(&key_path.key("paths"), path.parse::<PathSpec>());
        }
        for path in &raw.backup {
            checker.check_result(&key_path.key("backup"), path_number(paths, path));
        }
        let stacks = raw.stacks.clone().unwrap_or_else(|| marline.clone());
        policies(checker, &key_path, raw, &stacks);
        buffers(checker, &key_path, raw);
        let variant = Variant {
            name: name.to_owned(),
            paths: raw.paths.clone(),
            backup: raw.backup.clone(),
            plain: raw.plain,
            mode: raw.mode.clone(),
            datagram_policy: raw.datagram_policy.clone(),
            radio_rtt: raw.radio_rtt.map(|time| time.0),
            scheduler: raw.scheduler.clone(),
            path_manager: raw.path_manager.clone(),
            congestion: raw.congestion.clone(),
            recovery: raw.recovery.clone(),
            send_buffer: raw.send_buffer.map(|bytes| bytes.0),
            receive_buffer: raw.receive_buffer.map(|bytes| bytes.0),
            buffer_tuning: raw.buffer_tuning.map(Into::into).unwrap_or_default(),
            unpaced: raw.unpaced,
            receive_timer: raw.receive_timer.clone(),
            lone_keepalive: raw.lone_keepalive.clone(),
            repair: raw.repair,
            score_forecasts: raw.score_forecasts,
        };
        contestants.push(Contestant { variant, stacks });
    }
    contestants
}

fn buffers(checker: &mut Checker<'_>, key_path: &KeyPath, raw: &RawVariant) {
    for (key, bytes) in [("send_buffer", raw.send_buffer), ("receive_buffer", raw.receive_buffer)] {
        if let Some(Bytes(bytes)) = bytes.filter(|bytes| !BUFFER_RANGE.contains(&bytes.0)) {
            let (least, most) = (BUFFER_RANGE.start(), BUFFER_RANGE.end());
            let what = format!("{bytes} bytes: must be {least} to {most}");
            checker.report(&key_path.key(key), what);
        }
    }
}

fn policies(checker: &mut Checker<'_>, key_path: &KeyPath, raw: &RawVariant, stacks: &[Stack]) {
    let registry = policies::registry();
    if let Some(stack) = stacks.iter().find(|stack| !stack.is_marline()) {
        let why = format!(
            "stack `{stack}` belongs to the kernel: only its congestion control can be set"
        );
        checker.refuse(key_path, "mode", &why, raw.mode.as_ref());
        checker.refuse(key_path, "scheduler", &why, raw.scheduler.as_ref());
        checker.refuse(key_path, "path_manager", &why, raw.path_manager.as_ref());
        checker.refuse(key_path, "recovery", &why, raw.recovery.as_ref());
        checker.refuse(key_path, "receive_timer", &why, raw.receive_timer.as_ref());
        checker.refuse(key_path, "lone_keepalive", &why, raw.lone_keepalive.as_ref());
        checker.refuse(key_path, "datagram_policy", &why, raw.datagram_policy.as_ref());
        checker.refuse(key_path, "radio_rtt", &why, raw.radio_rtt.as_ref());
        checker.refuse(key_path, "plain", "use stack `tcp` instead", raw.plain.then_some(&()));
    }
    if !stacks.iter().any(|stack| stack.is_marline()) {
        return;
    }
    if let Some(mode) = raw.mode.as_ref().filter(|mode| MULTIMOB.contains(&mode.as_str())) {
        let why = format!("mode = \"{mode}\" sets this key itself: remove one of the two");
        checker.refuse(key_path, "scheduler", &why, raw.scheduler.as_ref());
        checker.refuse(key_path, "path_manager", &why, raw.path_manager.as_ref());
        checker.refuse(key_path, "receive_timer", &why, raw.receive_timer.as_ref());
    }
    let moded = Variant { mode: raw.mode.clone(), ..Variant::default() };
    checker.check_result(&key_path.key("mode"), moded.interactive());
    if let Some(spec) = &raw.scheduler {
        checker.check_result(&key_path.key("scheduler"), registry.scheduler(spec));
    }
    if let Some(spec) = &raw.path_manager {
        checker.check_result(&key_path.key("path_manager"), registry.path_manager(spec));
    }
    if let Some(spec) = &raw.congestion {
        checker.check_result(&key_path.key("congestion"), registry.congestion(spec));
    }
    if let Some(spec) = &raw.recovery {
        checker.check_result(&key_path.key("recovery"), registry.recovery(spec));
    }
    if let Some(spec) = &raw.datagram_policy {
        checker.check_result(&key_path.key("datagram_policy"), registry.datagram_policy(spec));
    }
    if let Some(spec) = &raw.receive_timer {
        checker.check_result(&key_path.key("receive_timer"), spec.parse::<ReceiveTimer>());
    }
    if let Some(spec) = &raw.lone_keepalive {
        checker.check_result(&key_path.key("lone_keepalive"), spec.parse::<LoneKeepalive>());
    }
}
