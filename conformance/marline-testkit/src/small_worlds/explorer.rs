//! Exhaustive search through all small worlds of a scene.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::choice::Choice;
use super::ends::Ends;
use super::scene::Scene;
use super::verdict::{RuleViolation, Verdict, judge};
use super::world::{Failed, OptionTreatment, World};
use marline_time::Instant;

/// Number of waits in a world after which it gets no further faults.
const MAX_WAITS: usize = 12;
/// Number of waits after the last fault for which a packet can be held back.
const MAX_HOLD_WAITS: usize = 5;
/// Virtual time after which a world counts as endless.
const END: Instant = Instant::from_secs(6 * 3_600);
/// Number of steps after which a world counts as endless.
const MAX_STEPS: usize = 5_000;
/// Every 256th end of a world is compared with a replay of its choices in which no states are merged.
const COMPARISON_INTERVAL: u64 = 256;
/// The rule that an endpoint does not panic.
const PANIC_RULE: &str = "panicked";

/// A rule that was broken, and the shortest known list of choices that breaks it.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The broken rule, and its details.
    pub complaint: RuleViolation,
    /// Choices that lead to it. [`replay`] repeats them.
    pub script: Vec<Choice>,
    /// Number of worlds that had been entered when the violation was first found.
    pub after_worlds: u64,
    /// Number of worlds with this outcome.
    pub count: u64,
}

impl Finding {
    /// Removes choices at the end of the script that would happen anyway. If a replay does not reproduce the finding,
    /// its details say so.
    fn confirm(&mut self, scene: &Scene) {
        let rule = self.complaint.rule;
        let is_found = |script: &[Choice]| match replay(scene, script) {
            Ok(verdict) => verdict.complaint.is_some_and(|complaint| complaint.rule == rule),
            Err(_) => rule == PANIC_RULE,
        };
        if !is_found(&self.script) {
            self.complaint.details.push_str(" (not reproduced in a separate world)");
            return;
        }
        while let Some((_, shorter)) = self.script.split_last().filter(|(_, s)| is_found(s)) {
            self.script = shorter.to_vec();
        }
    }
}

/// Result of an exploration.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of distinct worlds that were entered.
    pub worlds: u64,
    /// Number of these worlds that ended and were judged.
    pub ends: u64,
    /// Length of the longest list of choices.
    pub depth: usize,
    /// Number of different states of the ends.
    pub states: usize,
    /// Number of inputs processed by a real endpoint.
    pub steps: usize,
    /// True if no world was omitted.
    pub complete: bool,
    /// Number of worlds by outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// Broken rules.
    pub findings: Vec<Finding>,
}

/// Explores all worlds of a scene with at most `faults` faults, until `stop` returns true for the report so far.
pub fn explore(scene: &Scene, faults: usize, stop: &mut dyn FnMut(&Report) -> bool) -> Report {
    let report = Report { complete: true, ..Report::default() };
    let mut walk = Walk {
        scene,
        faults,
        stop,
        ends: Ends::new(scene, true, false),
        seen: BTreeSet::new(),
        outcomes: HashMap::new(),
        verdicts: Vec::new(),
        script: Vec::new(),
        report,
    };
    let world = World::new(scene, &mut walk.ends);
    walk.enter(world);
    let Walk { ends, verdicts, mut report, .. } = walk;
    [report.states, report.steps] = ends.counts();
    for (verdict, count) in verdicts {
        *report.outcomes.entry(verdict.outcome).or_default() += count;
    }
    for finding in &mut report.findings {
        finding.confirm(scene);
    }
    report
}

/// Applies a list of choices, runs the world to its end without further faults, and judges it.
///
/// # Errors
/// If a choice is not possible at its position, or if an endpoint panicked.
pub fn replay(scene: &Scene, script: &[Choice]) -> Result<Verdict, String> {
    replay_choices(scene, script, false).map(|(verdict, _)| verdict)
}

/// Like [`replay`], but also returns a readable log with one line per event.
///
/// # Errors
/// Like [`replay`].
pub fn trace(scene: &Scene, script: &[Choice]) -> Result<(Verdict, Vec<String>), String> {
    replay_choices(scene, script, true)
}

fn replay_choices(
    scene: &Scene,
    script: &[Choice],
    logs: bool,
) -> Result<(Verdict, Vec<String>), String> {
    let mut ends = Ends::new(scene, false, logs);
    let mut world = World::new(scene, &mut ends);
    world.log = logs.then(Vec::new);
    for (at, choice) in script.iter().enumerate() {
        world.apply(&mut ends, *choice).map_err(|failed| match failed {
            Failed::Impossible => format!("choice {at}, `{choice}`, is not possible"),
            Failed::Panicked(words) => format!("choice {at}, `{choice}`: {words}"),
        })?;
    }
    for _ in 0..MAX_STEPS {
        let Some(choice) = next_without_fault(&world, &ends).filter(|_| world.now <= END) else {
            break;
        };
        if let Err(Failed::Panicked(words)) = world.apply(&mut ends, choice) {
            return Err(words.to_string());
        }
    }
    let endless = next_without_fault(&world, &ends).is_some();
    Ok((judge(&world.final_state(&ends, endless)), world.log.unwrap_or_default()))
}

/// Chooses the next event without a fault: packets arrive in order, followed by held ones, and then timers run.
fn next_without_fault(world: &World, ends: &Ends<'_>) -> Option<Choice> {
    let prompt = world.in_flight.iter().position(|packet| !packet.held);
    let any = (!world.in_flight.is_empty()).then_some(0);
    let timer = || world.deadline(ends).map(|_| Choice::Wait);
    prompt.or(any).map(Choice::Deliver).or_else(timer)
}

fn panic_violation(words: &str) -> RuleViolation {
    RuleViolation { rule: PANIC_RULE, details: words.to_owned() }
}

struct Walk<'a> {
    scene: &'a Scene,
    faults: usize,
    stop: &'a mut dyn FnMut(&Report) -> bool,
    ends: Ends<'a>,
    /// Fingerprints of all worlds that were entered.
    seen: BTreeSet<u64>,
    /// Indices into `verdicts` of the worlds that run to their end without further choices, by exact fingerprint.
    outcomes: HashMap<u64, u32>,
    /// Verdicts, and the number of worlds for each.
    verdicts: Vec<(Verdict, u64)>,
    script: Vec<Choice>,
    report: Report,
}

impl Walk<'_> {
    /// Explores all worlds that can follow from a new world.
    fn enter(&mut self, world: World) {
        self.report.worlds += 1;
        self.report.depth = self.report.depth.max(self.script.len());
        if (self.stop)(&self.report) {
            self.report.complete = false;
        }
        if !self.report.complete {
            return;
        }
        if world.faults >= self.faults || world.waits >= MAX_WAITS {
            return self.finish(world);
        }
        let choices = self.choices(&world);
        if choices.is_empty() {
            return self.finish(world);
        }
        self.branch(&world, &choices);
    }

    /// Enters the worlds that follow from each of these choices.
    fn branch(&mut self, world: &World, choices: &[Choice]) {
        for choice in choices {
            let mut next = world.clone();
            self.script.push(*choice);
            let applied = next.apply(&mut self.ends, *choice);
            next.bound = next.bound.filter(|_| next.faults < self.faults);
            match applied {
                Ok(()) if self.seen.insert(next.fingerprint()) => self.enter(next),
                Ok(()) | Err(Failed::Impossible) => {}
                Err(Failed::Panicked(words)) => self.record_violation(&panic_violation(&words)),
            }
            self.script.pop();
            if !self.report.complete {
                return;
            }
        }
    }

    /// All choices, without those that have the same effect as another choice now or as the same choice later.
    fn choices(&self, world: &World) -> Vec<Choice> {
        if let Some(n) = world.bound {
            return self.packet_choices(world, &[n]);
        }
        let mut choices = self.packet_choices(world, &world.next_packets().collect::<Vec<_>>());
        let kinds = self.scene.faults;
        let may_wait = world.deadline(&self.ends).is_some();
        if may_wait {
            choices.push(if world.is_busy() { Choice::TimeOut } else { Choice::Wait });
        }
        for path in 0..self.scene.paths {
            if kinds.strips && world.options[path] == OptionTreatment::Pass && !world.lost[path] {
                choices.extend([Choice::StripPath(path), Choice::BlockOptions(path)]);
            }
            if kinds.lost_addresses && !world.lost[path] && !world.has_client_ended(&self.ends) {
                choices.push(Choice::LoseAddress(path));
            }
        }
        if world.in_flight.is_empty() && !may_wait { Vec::new() } else { choices }
    }

    /// Choices for each of these packets.
    fn packet_choices(&self, world: &World, places: &[usize]) -> Vec<Choice> {
        let mut choices: Vec<_> = places.iter().copied().map(Choice::Deliver).collect();
        for n in places.iter().copied() {
            let packet = &world.in_flight[n];
            choices.push(Choice::Duplicate(n));
            // Losing a held packet has the same effect as losing it immediately.
            if !packet.held && world.is_loss_distinct(n) {
                choices.extend([Choice::Hold(n), Choice::Drop(n)]);
            }
            if self.scene.faults.strips && packet.has_mptcp {
                choices.push(Choice::Strip(n));
            }
        }
        choices
    }

    /// Runs a world without further faults to its end and judges it. A held packet is tried at two times: now, and
    /// after timers have run.
    fn finish(&mut self, mut world: World) {
        if !world.in_flight.iter().any(|packet| packet.held) {
            return self.end(world);
        }
        let length = self.script.len();
        while world.is_busy() && self.script.len() < MAX_STEPS {
            let Some(choice) = next_without_fault(&world, &self.ends) else { break };
            self.script.push(choice);
            if let Err(Failed::Panicked(words)) = world.apply(&mut self.ends, choice) {
                self.record_violation(&panic_violation(&words));
                return self.script.truncate(length);
            }
        }
        if world.waits_without_fault < MAX_HOLD_WAITS && world.deadline(&self.ends).is_some() {
            self.branch(&world, &[Choice::Deliver(0), Choice::Wait]);
        } else {
            self.end(world);
        }
        self.script.truncate(length);
    }

    fn end(&mut self, world: World) {
        self.report.ends += 1;
        let fate = self.run_to_end(world);
        let (verdict, count) = &mut self.verdicts[fate];
        *count += 1;
        let Verdict { outcome, complaint, .. } = verdict;
        let complaint = complaint.clone();
        let compared =
            self.report.ends.is_multiple_of(COMPARISON_INTERVAL).then(|| outcome.clone());
        if let Some(complaint) = complaint {
            return self.record_violation(&complaint);
        }
        let Some(outcome) = compared else { return };
        let alone = replay(self.scene, &self.script).map_or_else(|e| e, |verdict| verdict.outcome);
        if alone != outcome {
            let details = format!("{outcome}; without merged states {alone}");
            self.record_violation(&RuleViolation {
                rule: "equal states evolved differently",
                details,
            });
        }
    }

    /// Runs a world to its end: all packets in flight arrive, then timers run. Returns an index into `verdicts`.
    fn run_to_end(&mut self, mut world: World) -> usize {
        let mut passed = Vec::new();
        let fate = loop {
            let print = world.exact_fingerprint();
            if let Some(fate) = self.outcomes.get(&print) {
                break *fate;
            }
            passed.push(print);
            let next = next_without_fault(&world, &self.ends);
            let endless = next.is_some() && (world.now > END || passed.len() > MAX_STEPS);
            let Some(choice) = next.filter(|_| !endless) else {
                let verdict = judge(&world.final_state(&self.ends, endless));
                break self.verdict(verdict);
            };
            if let Err(Failed::Panicked(words)) = world.apply(&mut self.ends, choice) {
                let (outcome, complaint) = ("panicked".to_owned(), Some(panic_violation(&words)));
                break self.verdict(Verdict { outcome, joins: 0, complaint });
            }
        };
        self.outcomes.extend(passed.into_iter().map(|print| (print, fate)));
        fate as usize
    }

    fn verdict(&mut self, verdict: Verdict) -> u32 {
        let known = self.verdicts.iter().position(|(known, _)| *known == verdict);
        known.unwrap_or_else(|| {
            self.verdicts.push((verdict, 0));
            self.verdicts.len() - 1
        }) as u32
    }

    fn record_violation(&mut self, complaint: &RuleViolation) {
        let after_worlds = self.report.worlds;
        let script = self.script.clone();
        let same = |finding: &&mut Finding| finding.complaint.rule == complaint.rule;
        match self.report.findings.iter_mut().find(same) {
            None => {
                let complaint = complaint.clone();
                self.report.findings.push(Finding { complaint, script, after_worlds, count: 1 });
            }
            Some(finding) => {
                finding.count += 1;
                if script.len() < finding.script.len() {
                    (finding.complaint, finding.script) = (complaint.clone(), script);
                }
            }
        }
    }
}
