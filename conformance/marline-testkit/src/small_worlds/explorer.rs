//! The walk through all small worlds of a scene.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::choice::Choice;
use super::scene::Scene;
use super::verdict::{Complaint, Verdict, judge};
use super::world::{OptionFate, World};
use marline_time::Instant;

/// Times that timers run in a world before it gets no further faults.
const MAX_WAITS: usize = 12;
/// Times that timers run beside a packet that is held back, once there are no further faults.
const HELD_WAITS: usize = 5;
/// A world that is not at rest by then never will be.
const END: Instant = Instant::from_secs(6 * 3_600);
/// The same in steps.
const MAX_STEPS: usize = 5_000;

/// A rule that worlds broke, and the shortest list of choices seen that does.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What is wrong.
    pub complaint: Complaint,
    /// How to get there: [`replay`].
    pub script: Vec<Choice>,
    /// The number of worlds that had been entered when the first was found.
    pub after_worlds: u64,
    /// How many worlds ended like this.
    pub count: u64,
}

/// What was explored.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Different worlds that were entered.
    pub worlds: u64,
    /// Of these, those that came to an end and were judged.
    pub ends: u64,
    /// Choices of the longest list.
    pub depth: usize,
    /// Nothing was left out.
    pub complete: bool,
    /// How many worlds ended how.
    pub outcomes: BTreeMap<String, u64>,
    /// Broken rules.
    pub findings: Vec<Finding>,
}

/// Walks through all worlds of a scene with at most `faults` faults, or until `stop`, which is shown the report.
pub fn explore(scene: &Scene, faults: usize, stop: &mut dyn FnMut(&Report) -> bool) -> Report {
    let report = Report { complete: true, ..Report::default() };
    let mut walk = Walk {
        scene,
        faults,
        stop,
        seen: BTreeSet::new(),
        states: Default::default(),
        script: Vec::new(),
        report,
    };
    let world = World::new(scene);
    walk.enter(world);
    walk.report
}

/// The world that a list of choices leads to, run to its end without further faults.
///
/// # Errors
/// A choice that is not possible where it stands.
pub fn replay(scene: &Scene, script: &[Choice]) -> Result<Verdict, String> {
    replayed(scene, script, false).map(|(verdict, _)| verdict)
}

/// The same with everything that happens, a line each, to read.
///
/// # Errors
/// As [`replay`].
pub fn trace(scene: &Scene, script: &[Choice]) -> Result<(Verdict, Vec<String>), String> {
    replayed(scene, script, true)
}

fn replayed(
    scene: &Scene,
    script: &[Choice],
    logs: bool,
) -> Result<(Verdict, Vec<String>), String> {
    let mut world = World::new(scene);
    world.log = logs.then(Vec::new);
    for (at, choice) in script.iter().enumerate() {
        if !world.apply(*choice) {
            return Err(format!("choice {at}, `{choice}`, is not possible"));
        }
    }
    let endless = run_to_end(&mut world);
    let verdict = judge(&world, is_benign(script), endless);
    Ok((verdict, world.log.unwrap_or_default()))
}

fn is_benign(script: &[Choice]) -> bool {
    script.iter().all(|choice| choice.is_benign())
}

/// Everything in flight arrives, then timers run, until nothing is left to happen. `true`: it never ends.
fn run_to_end(world: &mut World) -> bool {
    for _ in 0..MAX_STEPS {
        let Some(choice) = next_without_fault(world) else { return false };
        if world.now > END {
            return true;
        }
        world.apply(choice);
    }
    true
}

/// What happens where nothing is chosen: packets arrive in their order, held ones last; then timers run.
fn next_without_fault(world: &World) -> Option<Choice> {
    let prompt = world.in_flight.iter().position(|packet| !packet.held);
    let any = (!world.in_flight.is_empty()).then_some(0);
    let timer = || world.deadline().map(|_| Choice::Wait);
    prompt.or(any).map(Choice::Deliver).or_else(timer)
}

struct Walk<'a> {
    scene: &'a Scene,
    faults: usize,
    stop: &'a mut dyn FnMut(&Report) -> bool,
    /// Fingerprints of all worlds that were entered.
    seen: BTreeSet<u64>,
    /// What each end had become by its inputs.
    states: [BTreeMap<u64, u64>; 2],
    script: Vec<Choice>,
    report: Report,
}

impl Walk<'_> {
    /// Everything that can become of a world which no list of choices has led to before.
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
        self.branch(world, &choices);
    }

    /// Enters what follows from each of these choices. All but the last start from a replay.
    fn branch(&mut self, world: World, choices: &[Choice]) {
        let mut world = Some(world);
        for (at, choice) in choices.iter().enumerate() {
            let last = at + 1 == choices.len();
            let here = if last { world.take() } else { Some(self.replayed()) };
            let Some(mut next) = here else { return };
            self.script.push(*choice);
            match catch_unwind(AssertUnwindSafe(|| next.apply(*choice))) {
                Ok(_) if self.is_new(&next) => self.enter(next),
                Ok(_) => {}
                Err(panic) => self.note_panic(&*panic),
            }
            self.script.pop();
            if !self.report.complete {
                return;
            }
        }
    }

    /// Whether no list of choices has led here. Worlds that get no further faults are told apart by what their ends
    /// were given: most of them are new, and to know that is cheaper than their state.
    fn is_new(&mut self, world: &World) -> bool {
        let goes_on = world.faults < self.faults;
        let mut states = [0; 2];
        for ((state, known), end) in states.iter_mut().zip(&mut self.states).zip(&world.ends) {
            *state = match goes_on {
                true => *known.entry(end.inputs()).or_insert_with(|| end.state()),
                false => end.inputs(),
            };
        }
        self.seen.insert(world.fingerprint(states))
    }

    fn replayed(&self) -> World {
        let mut world = World::new(self.scene);
        for choice in &self.script {
            world.apply(*choice);
        }
        world
    }

    fn choices(&self, world: &World) -> Vec<Choice> {
        let mut choices = Vec::new();
        let kinds = self.scene.faults;
        let may_wait = world.deadline().is_some();
        if !world.is_busy() && may_wait {
            choices.push(Choice::Wait);
        }
        for n in world.next_packets() {
            let packet = &world.in_flight[n];
            choices.extend([Choice::Lose(n), Choice::Duplicate(n)]);
            if !packet.held {
                choices.push(Choice::Hold(n));
            }
            if kinds.strips && packet.has_mptcp {
                choices.push(Choice::Strip(n));
            }
        }
        if world.is_busy() && may_wait {
            choices.push(Choice::TimeOut);
        }
        for path in 0..self.scene.paths {
            if kinds.strips && world.options[path] == OptionFate::Pass && !world.lost[path] {
                choices.extend([Choice::StripPath(path), Choice::BlockOptions(path)]);
            }
            if kinds.lost_addresses && !world.lost[path] && !world.ends[0].is_over() {
                choices.push(Choice::LoseAddress(path));
            }
        }
        // Last, so that the longest lists of choices are not replayed.
        choices.extend(world.next_packets().map(Choice::Deliver));
        if world.in_flight.is_empty() && !may_wait { Vec::new() } else { choices }
    }

    /// Runs a world without further faults to its end and judges it. Where a packet is held back, it arrives now, or
    /// after timers have run.
    fn finish(&mut self, mut world: World) {
        let length = self.script.len();
        while world.is_busy() {
            let Some(choice) = next_without_fault(&world) else { break };
            self.script.push(choice);
            match catch_unwind(AssertUnwindSafe(|| world.apply(choice))) {
                Ok(_) => {}
                Err(panic) => {
                    self.note_panic(&*panic);
                    return self.script.truncate(length);
                }
            }
            if self.script.len() > MAX_STEPS {
                break;
            }
        }
        let held = world.in_flight.iter().any(|packet| packet.held);
        let waited = self.script.iter().rev().take_while(|choice| !choice.is_fault());
        let waited = waited.filter(|choice| **choice == Choice::Wait).count();
        if held && waited < HELD_WAITS && world.deadline().is_some() {
            self.branch(world, &[Choice::Deliver(0), Choice::Wait]);
        } else {
            self.end(world);
        }
        self.script.truncate(length);
    }

    fn end(&mut self, mut world: World) {
        self.report.ends += 1;
        match catch_unwind(AssertUnwindSafe(|| run_to_end(&mut world))) {
            Ok(endless) => {
                let verdict = judge(&world, is_benign(&self.script), endless);
                *self.report.outcomes.entry(verdict.outcome).or_default() += 1;
                if let Some(complaint) = verdict.complaint {
                    self.note(complaint);
                }
            }
            Err(panic) => self.note_panic(&*panic),
        }
    }

    fn note_panic(&mut self, panic: &(dyn core::any::Any + Send)) {
        let text = panic.downcast_ref::<String>().cloned();
        let words = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        self.note(Complaint { rule: "panicked", details: words.unwrap_or_default() });
    }

    fn note(&mut self, complaint: Complaint) {
        let after_worlds = self.report.worlds;
        let script = without_implied(&self.script);
        let same = |finding: &&mut Finding| finding.complaint.rule == complaint.rule;
        match self.report.findings.iter_mut().find(same) {
            None => {
                self.report.findings.push(Finding { complaint, script, after_worlds, count: 1 });
            }
            Some(finding) => {
                finding.count += 1;
                if script.len() < finding.script.len() {
                    (finding.complaint, finding.script) = (complaint, script);
                }
            }
        }
    }
}

/// A list of choices up to the last one that is not what happens anyway, as far as can be told without a world.
fn without_implied(script: &[Choice]) -> Vec<Choice> {
    let implied = script.iter().rev().take_while(|choice| **choice == Choice::Deliver(0)).count();
    script[..script.len() - implied].to_vec()
}
