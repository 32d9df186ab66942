//! Validation of an experiment file; every detectable mistake is reported at its place.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

use marline::config::{LoneKeepalive, ReceiveTimer};
use marline::paths::PathSpec;
use marline_link::{DuplexSpec, RateSpec};

use super::diagnostic::{Diagnostic, KeyPath};
use super::document::{Contestant, ExperimentFile};
use super::raw::{Direction, Raw, RawBackground, RawFault, RawVariant, RawWorkload, RawWorkloads};
use super::values::{Bytes, Span, Time};
use crate::emulation::script::{self, Order};
use crate::experiment::{
    Background, Experiment, Fault, Film, Load, Moment, Stack, TimelineConfig, Variant,
    can_be_restored,
};
use crate::policies;
use crate::scenario::{Event, Path, Scenario, check_name, path_number};
use crate::workload::{Gap, Workload};

/// Size of a message, bytes, and number of messages of a run.
const BYTES: std::ops::RangeInclusive<u64> = 1..=256_000_000;
const COUNT: std::ops::RangeInclusive<u32> = 1..=1_000_000;
/// Payload size of a buffer, bytes.
const BUFFER: std::ops::RangeInclusive<u64> = 1..=1 << 30;
/// Block size of a bulk stream, bytes: only the rate matters.
const BULK_BYTES: u32 = 65_536;
/// Default time to wait for the last messages after the planned end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Kinds of workloads.
const KINDS: &str = "echo, ask, dialogue, bursts, exchange, blocks, bulk, upload, voice, \
                     video, web";
/// A film without its length.
const FILM: Film = Film { segment_ms: 4_000, segments: 0, buffer_ms: 30_000 };
/// Time from one picture to the next of a video with a constant rate.
const PICTURE_MS: u64 = 40;
/// Most pages of a workload, each of which uses several ports.
const MAX_PAGES: u32 = 100;
/// Latency above which a frame of a call is late: what ITU-T G.114 calls acceptable, from memory.
const VOICE_DEADLINE: Duration = Duration::from_millis(150);
/// Frames of a call, G.711 with RTP's header: bytes of a datagram, ms from one to the next.
const VOICE_BYTES: u64 = 172;
const VOICE_FRAME_MS: u32 = 20;
/// Modes whose policies cannot be replaced.
const MULTIMOB: [&str; 2] = ["interactive", "multimob"];
/// Most workloads of a run.
const MAX_WORKLOADS: usize = 32;

/// Collects the mistakes in a file.
struct Checker<'a> {
    text: &'a str,
    diagnostics: Vec<Diagnostic>,
}

impl Checker<'_> {
    fn report(&mut self, key_path: &KeyPath, what: impl Display) {
        self.diagnostics.push(Diagnostic::new(self.text, key_path, what));
    }

    /// Returns a value, or adds a diagnostic at its place.
    fn ok<T, E: Display>(&mut self, key_path: &KeyPath, result: Result<T, E>) -> Option<T> {
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
pub(super) fn checked(raw: Raw, text: &str) -> Result<ExperimentFile, Vec<Diagnostic>> {
    let mut checker = Checker { text, diagnostics: Vec::new() };
    paths(&mut checker, &raw.paths);
    events(&mut checker, &raw.events, &raw.paths);
    let loads = loads(&mut checker, &raw.workloads);
    let mut moments = Vec::new();
    for (number, raw_fault) in raw.faults.iter().enumerate() {
        moments.extend(fault(&mut checker, number, raw_fault, &raw.paths));
    }
    let background: Vec<Background> = raw
        .background
        .iter()
        .enumerate()
        .map(|(number, raw_flow)| background(&mut checker, number, raw_flow, &raw.paths))
        .collect();
    let contestants = contestants(&mut checker, &raw.variants, &raw.paths);
    let interval = raw.timelines.map(|time| TimelineConfig::with_interval(time.0));
    checker.ok(&KeyPath::top("timelines"), interval.transpose());
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
        warm_up: raw.warm_up.map_or(Duration::ZERO, |time| time.0),
        patience: raw.patience.map_or(PATIENCE, |time| time.0),
        trace_dir: None,
    };
    checker.ok(&KeyPath::default(), experiment.check());
    if !checker.diagnostics.is_empty() {
        return Err(checker.diagnostics);
    }
    let (title, name, text) = (raw.title.unwrap_or_default(), String::new(), String::new());
    let timelines = raw.timelines.map(|time| time.0);
    let axes = Vec::new();
    let qlog = raw.qlog;
    Ok(ExperimentFile { title, experiment, timelines, qlog, contestants, name, text, axes })
}

/// The scenario of a file that has no workload.
pub(super) fn scenario(text: &str) -> Result<Scenario, Vec<Diagnostic>> {
    let scenario: Scenario = toml::from_str(text).map_err(|error| vec![error.into()])?;
    let mut checker = Checker { text, diagnostics: Vec::new() };
    paths(&mut checker, &scenario.paths);
    events(&mut checker, &scenario.events, &scenario.paths);
    if checker.diagnostics.is_empty() {
        checker.ok(&KeyPath::default(), scenario.check());
    }
    if checker.diagnostics.is_empty() { Ok(scenario) } else { Err(checker.diagnostics) }
}

fn paths(checker: &mut Checker<'_>, paths: &[Path]) {
    if paths.is_empty() {
        checker.report(
            &KeyPath::default(),
            "there must be at least one [[path]] with `name` and `link`",
        );
    }
    let mut seen = BTreeSet::new();
    for (number, path) in paths.iter().enumerate() {
        let key_path = KeyPath::top("path").at(number);
        checker.ok(&key_path.key("name"), check_name(&path.name));
        if !seen.insert(&path.name) {
            checker.report(&key_path.key("name"), format!("two paths are named `{}`", path.name));
        }
        let spec: Result<marline_link::DuplexSpec, _> = path.link.parse();
        if let Err(error) = spec {
            let shown = format!("`{}`: {}", error.item, error.why);
            checker.report(&key_path.key("link"), shown);
        }
        if path.client.is_empty() != path.server.is_empty() {
            checker.report(&key_path, "give addresses of both hosts, or none to have them chosen");
        }
    }
}

fn events(checker: &mut Checker<'_>, events: &[Event], paths: &[Path]) {
    for (number, event) in events.iter().enumerate() {
        let key_path = KeyPath::top("event").at(number);
        checker.ok(&key_path.key("path"), path_number(paths, &event.path));
        checker.ok(&key_path.key("at"), script::duration(&event.at));
        checker.ok(&key_path.key("command"), event.command.parse::<Order>());
    }
}

fn gap(checker: &mut Checker<'_>, key_path: &KeyPath, gap: Option<Span<Time>>) -> Option<Gap> {
    let gap = checker.need(key_path, "gap", "\"100ms\" or [\"100ms\", \"200ms\"]", gap)?;
    let (least_ms, most_ms) = (gap.least.ms(), gap.most.ms());
    if least_ms > most_ms {
        checker.report(&key_path.key("gap"), "the smaller value comes first");
    }
    Some(Gap { least_ms, most_ms })
}

fn size(checker: &mut Checker<'_>, key_path: &KeyPath, bytes: Bytes) -> Option<u32> {
    if !BYTES.contains(&bytes.0) {
        let (least, most) = (BYTES.start(), BYTES.end());
        checker.report(key_path, format!("{} bytes: must be from {least} to {most}", bytes.0));
        return None;
    }
    Some(bytes.0 as u32)
}

/// A single size, where a range is not allowed.
fn one_size(checker: &mut Checker<'_>, key_path: &KeyPath, bytes: Span<Bytes>) -> Option<u32> {
    if bytes.least != bytes.most {
        checker.report(key_path, "only bursts have random sizes");
    }
    size(checker, key_path, bytes.least)
}

fn count(checker: &mut Checker<'_>, key_path: &KeyPath, count: Option<u32>) -> Option<u32> {
    let count = checker.need(key_path, "count", "200", count)?;
    if !COUNT.contains(&count) {
        let (least, most) = (COUNT.start(), COUNT.end());
        checker.report(&key_path.key("count"), format!("must be from {least} to {most}"));
    }
    Some(count)
}

/// The workloads with their places. Without a name they are named by their kinds, if there are several.
fn loads(checker: &mut Checker<'_>, raw: &RawWorkloads) -> Vec<Load> {
    let top = KeyPath::top("workload");
    let (list, several) = (&raw.all, raw.all.len() > 1);
    if list.is_empty() || list.len() > MAX_WORKLOADS {
        checker.report(&top, format!("there must be 1 to {MAX_WORKLOADS} workloads"));
    }
    let mut loads: Vec<Load> = Vec::new();
    for (number, raw_load) in list.iter().enumerate() {
        let key_path = if raw.is_list { top.at(number) } else { top.clone() };
        let usual = if several { raw_load.kind.as_str() } else { "" };
        let name = raw_load.name.as_deref().unwrap_or(usual).to_owned();
        if loads.iter().any(|other| other.name == name) {
            let what = format!("two workloads are named `{name}`: give each a `name`");
            checker.report(&key_path, what);
        }
        let shared = |other: &RawWorkload| {
            other.connection.is_some() && other.connection == raw_load.connection
        };
        if raw_load.kind == "dialogue" && list.iter().filter(|other| shared(other)).count() > 1 {
            checker.report(&key_path.key("connection"), "a dialogue needs a connection of its own");
        }
        if let Some(workload) = workload(checker, &key_path, raw_load) {
            let from = raw_load.from.map_or(Duration::ZERO, |time| time.0);
            let usual = matches!(workload, Workload::Voice { .. }).then_some(VOICE_DEADLINE);
            let deadline = raw_load.deadline.map(|time| time.0).or(usual);
            let connection = raw_load.connection.clone();
            loads.push(Load { name, workload, connection, deadline, from });
        }
    }
    loads
}

fn workload(checker: &mut Checker<'_>, key_path: &KeyPath, raw: &RawWorkload) -> Option<Workload> {
    let before = checker.diagnostics.len();
    let bytes_at = key_path.key("bytes");
    let kind = raw.kind.as_str();
    if !matches!(kind, "ask" | "dialogue") {
        for (key, value) in [("request", &raw.request), ("answer", &raw.answer)] {
            let why = "only kind = \"ask\" and kind = \"dialogue\" have this key";
            checker.refuse(key_path, key, why, value.as_ref());
        }
    }
    if kind != "dialogue" {
        let why = "only kind = \"dialogue\" has this key";
        checker.refuse(key_path, "pieces", why, raw.pieces.as_ref());
        checker.refuse(key_path, "unanswered", why, raw.unanswered.as_ref());
    }
    if kind != "video" {
        let why = "only kind = \"video\" has this key";
        checker.refuse(key_path, "rate", why, raw.rate.as_ref());
    }
    if matches!(kind, "blocks" | "bulk" | "upload" | "voice" | "video") {
        let why = "a stream has no messages: use `lasts`";
        checker.refuse(key_path, "gap", why, raw.gap.as_ref());
        checker.refuse(key_path, "count", why, raw.count.as_ref());
    } else if kind == "exchange" {
        let why = "an exchange is one message each way, at the start";
        checker.refuse(key_path, "gap", why, raw.gap.as_ref());
        checker.refuse(key_path, "count", why, raw.count.as_ref());
        checker.refuse(key_path, "lasts", why, raw.lasts.as_ref());
    } else {
        let why =
            "this workload ends after `count` messages; only blocks and bulk have a time limit";
        checker.refuse(key_path, "lasts", why, raw.lasts.as_ref());
    }
    let workload = match kind {
        "echo" => {
            let bytes = checker.need(key_path, "bytes", "200", raw.bytes);
            let bytes = bytes.and_then(|bytes| one_size(checker, &bytes_at, bytes));
            let gap = gap(checker, key_path, raw.gap);
            let count = count(checker, key_path, raw.count)?;
            let (bytes, gap) = (bytes?, gap?);
            Workload::Ask { request_bytes: bytes, answer_bytes: bytes, gap, count }
        }
        "ask" | "dialogue" => questions(checker, key_path, raw)?,
        "bursts" => {
            let example = "\"100kB\" or [\"0.5MB\", \"1.5MB\"]";
            let bytes = checker.need(key_path, "bytes", example, raw.bytes);
            let gap = gap(checker, key_path, raw.gap);
            let count = count(checker, key_path, raw.count);
            bursts(checker, &bytes_at, bytes?, gap?, count?)?
        }
        "exchange" => {
            let bytes = checker.need(key_path, "bytes", "\"8MiB\"", raw.bytes)?;
            Workload::Exchange { bytes: one_size(checker, &bytes_at, bytes)? }
        }
        "web" => {
            let gap = gap(checker, key_path, raw.gap);
            let count = count(checker, key_path, raw.count)?;
            if count > MAX_PAGES {
                checker.report(&key_path.key("count"), format!("at most {MAX_PAGES} pages"));
            }
            Workload::Web { gap: gap?, count }
        }
        "video" => video(checker, key_path, raw)?,
        "voice" => {
            let usual = Span { least: Bytes(VOICE_BYTES), most: Bytes(VOICE_BYTES) };
            let bytes = one_size(checker, &bytes_at, raw.bytes.unwrap_or(usual));
            let lasts = checker.need(key_path, "lasts", "\"30s\"", raw.lasts)?;
            let count = lasts.0.as_millis() as u32 / VOICE_FRAME_MS;
            Workload::Voice { bytes: bytes?, frame_ms: VOICE_FRAME_MS, count: count.max(1) }
        }
        "blocks" | "bulk" | "upload" => {
            let usual = (raw.kind != "blocks").then_some(Bytes(u64::from(BULK_BYTES)));
            let usual = usual.map(|bytes| Span { least: bytes, most: bytes });
            let bytes = checker.need(key_path, "bytes", "8192", raw.bytes.or(usual));
            let bytes = bytes.and_then(|bytes| one_size(checker, &bytes_at, bytes));
            let lasts = checker.need(key_path, "lasts", "\"30s\"", raw.lasts)?;
            let (bytes, lasts_ms) = (bytes?, lasts.0.as_millis() as u64);
            match kind {
                "upload" => Workload::Upload { bytes, lasts_ms },
                _ => Workload::Blocks { bytes, lasts_ms },
            }
        }
        other => {
            let what = format!("unknown workload `{other}`; known: {KINDS}");
            checker.report(&key_path.key("kind"), what);
            return None;
        }
    };
    (checker.diagnostics.len() == before).then_some(workload)
}

/// A film whose player chooses the rate; with `rate`, a picture each 40 ms.
fn video(checker: &mut Checker<'_>, key_path: &KeyPath, raw: &RawWorkload) -> Option<Workload> {
    let lasts = checker.need(key_path, "lasts", "\"60s\"", raw.lasts)?.0.as_millis() as u64;
    let Some(rate) = &raw.rate else {
        let segments = (lasts as u32 / FILM.segment_ms).max(1);
        return Some(Workload::Film(Film { segments, ..FILM }));
    };
    let link = format!("rate={rate}").parse::<DuplexSpec>();
    let spec = checker.ok(&key_path.key("rate"), link.map_err(|error| error.why))?;
    let RateSpec::Constant(rate) = spec.down.rate else {
        checker.report(&key_path.key("rate"), "a constant rate such as \"4M\" is expected");
        return None;
    };
    let bytes = (rate.bits_per_s() * PICTURE_MS / 8_000).max(1) as u32;
    let gap = Gap { least_ms: PICTURE_MS as f64, most_ms: PICTURE_MS as f64 };
    Some(Workload::Bursts { bytes, gap, count: (lasts / PICTURE_MS).max(1) as u32 })
}

/// Workloads of requests and answers.
fn questions(checker: &mut Checker<'_>, key_path: &KeyPath, raw: &RawWorkload) -> Option<Workload> {
    checker.refuse(key_path, "bytes", "this has `request` and `answer`", raw.bytes.as_ref());
    let request = checker.need(key_path, "request", "100", raw.request);
    let answer = checker.need(key_path, "answer", "1000", raw.answer);
    let request = request.and_then(|bytes| size(checker, &key_path.key("request"), bytes));
    let answer = answer.and_then(|bytes| size(checker, &key_path.key("answer"), bytes));
    let gap = gap(checker, key_path, raw.gap);
    let count = count(checker, key_path, raw.count);
    let (request_bytes, answer_bytes) = (request?, answer?);
    let (gap, count) = (gap?, count?);
    if raw.kind == "ask" {
        return Some(Workload::Ask { request_bytes, answer_bytes, gap, count });
    }
    // Defaults: whole requests, and no limit to what is unanswered.
    let at_pieces = key_path.key("pieces");
    let pieces = match raw.pieces {
        None => (request_bytes, request_bytes),
        Some(span) if span.least.0 > span.most.0 => {
            checker.report(&at_pieces, "the smaller value comes first");
            return None;
        }
        Some(span) => {
            (size(checker, &at_pieces, span.least)?, size(checker, &at_pieces, span.most)?)
        }
    };
    let unanswered = raw.unanswered.map(|bytes| size(checker, &key_path.key("unanswered"), bytes));
    let unanswered_bytes = unanswered.unwrap_or(Some(u32::MAX))?;
    Some(Workload::Dialogue { request_bytes, answer_bytes, pieces, unanswered_bytes, gap, count })
}

fn bursts(
    checker: &mut Checker<'_>,
    key_path: &KeyPath,
    bytes: Span<Bytes>,
    gap: Gap,
    count: u32,
) -> Option<Workload> {
    let (least, most) =
        (size(checker, key_path, bytes.least)?, size(checker, key_path, bytes.most)?);
    if least > most {
        checker.report(key_path, "the smaller value comes first");
    }
    Some(match least == most {
        true => Workload::Bursts { bytes: least, gap, count },
        false => Workload::RandomBursts { least_bytes: least, most_bytes: most, gap, count },
    })
}

fn fault(
    checker: &mut Checker<'_>,
    number: usize,
    raw: &RawFault,
    paths: &[Path],
) -> Option<Fault> {
    let key_path = KeyPath::top("fault").at(number);
    checker.ok(&key_path.key("path"), path_number(paths, &raw.path));
    let order: Option<Order> = checker.ok(&key_path.key("command"), raw.command.parse());
    if raw.lasts.is_some() && order.is_some_and(|order| !can_be_restored(&order)) {
        checker.report(&key_path.key("lasts"), "only `down` ends by itself");
    }
    for (key, span) in [("after", raw.after), ("between", raw.between)] {
        if span.is_some_and(|span| span.least.0 > span.most.0) {
            checker.report(&key_path.key(key), "the earlier time comes first");
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
            let what = "the time is missing, give one of: burst = 6 (with after = [\"0ms\", \"45ms\"]), \
                        around_burst = 6, between = [\"7s\", \"8s\"]";
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

fn background(
    checker: &mut Checker<'_>,
    number: usize,
    raw: &RawBackground,
    paths: &[Path],
) -> Background {
    let key_path = KeyPath::top("background").at(number);
    checker.ok(&key_path.key("path"), path_number(paths, &raw.path));
    let congestion = raw.congestion.as_deref().unwrap_or("cubic").to_owned();
    checker.ok(&key_path.key("congestion"), policies::registry().congestion(&congestion));
    let (from, until) =
        (raw.from.map_or(Duration::ZERO, |time| time.0), raw.until.map(|time| time.0));
    if until.is_some_and(|until| until <= from) {
        checker.report(&key_path.key("until"), "must be later than `from`");
    }
    let is_up = raw.direction == Direction::Up;
    Background { path: raw.path.clone(), congestion, is_up, from, until }
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
        let key_path = KeyPath::top("variant").at(number);
        let name = raw.name.trim();
        if name.is_empty() || !seen.insert(name.to_owned()) {
            checker.report(&key_path.key("name"), "every variant needs a unique name");
        }
        for path in &raw.paths {
            let found = path_number(paths, path.split(',').next().unwrap_or_default());
            checker.ok(&key_path.key("paths"), found);
            checker.ok(&key_path.key("paths"), path.parse::<PathSpec>());
        }
        for path in &raw.backup {
            checker.ok(&key_path.key("backup"), path_number(paths, path));
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
        if let Some(Bytes(bytes)) = bytes.filter(|bytes| !BUFFER.contains(&bytes.0)) {
            let (least, most) = (BUFFER.start(), BUFFER.end());
            let what = format!("{bytes} bytes: must be from {least} to {most}");
            checker.report(&key_path.key(key), what);
        }
    }
}

fn policies(checker: &mut Checker<'_>, key_path: &KeyPath, raw: &RawVariant, stacks: &[Stack]) {
    let registry = policies::registry();
    if let Some(stack) = stacks.iter().find(|stack| !stack.is_marline()) {
        let why = format!("stack `{stack}` is the kernel's: it has a congestion control only");
        checker.refuse(key_path, "mode", &why, raw.mode.as_ref());
        checker.refuse(key_path, "scheduler", &why, raw.scheduler.as_ref());
        checker.refuse(key_path, "path_manager", &why, raw.path_manager.as_ref());
        checker.refuse(key_path, "recovery", &why, raw.recovery.as_ref());
        checker.refuse(key_path, "receive_timer", &why, raw.receive_timer.as_ref());
        checker.refuse(key_path, "lone_keepalive", &why, raw.lone_keepalive.as_ref());
        checker.refuse(key_path, "datagram_policy", &why, raw.datagram_policy.as_ref());
        checker.refuse(key_path, "radio_rtt", &why, raw.radio_rtt.as_ref());
        checker.refuse(key_path, "plain", "use stack `tcp` for that", raw.plain.then_some(&()));
    }
    if !stacks.iter().any(|stack| stack.is_marline()) {
        return;
    }
    if let Some(mode) = raw.mode.as_ref().filter(|mode| MULTIMOB.contains(&mode.as_str())) {
        let why = format!("mode = \"{mode}\" sets its own: remove one of the two");
        checker.refuse(key_path, "scheduler", &why, raw.scheduler.as_ref());
        checker.refuse(key_path, "path_manager", &why, raw.path_manager.as_ref());
        checker.refuse(key_path, "receive_timer", &why, raw.receive_timer.as_ref());
    }
    let moded = Variant { mode: raw.mode.clone(), ..Variant::default() };
    checker.ok(&key_path.key("mode"), moded.interactive());
    if let Some(spec) = &raw.scheduler {
        checker.ok(&key_path.key("scheduler"), registry.scheduler(spec));
    }
    if let Some(spec) = &raw.path_manager {
        checker.ok(&key_path.key("path_manager"), registry.path_manager(spec));
    }
    if let Some(spec) = &raw.congestion {
        checker.ok(&key_path.key("congestion"), registry.congestion(spec));
    }
    if let Some(spec) = &raw.recovery {
        checker.ok(&key_path.key("recovery"), registry.recovery(spec));
    }
    if let Some(spec) = &raw.datagram_policy {
        checker.ok(&key_path.key("datagram_policy"), registry.datagram_policy(spec));
    }
    if let Some(spec) = &raw.receive_timer {
        checker.ok(&key_path.key("receive_timer"), spec.parse::<ReceiveTimer>());
    }
    if let Some(spec) = &raw.lone_keepalive {
        checker.ok(&key_path.key("lone_keepalive"), spec.parse::<LoneKeepalive>());
    }
}
