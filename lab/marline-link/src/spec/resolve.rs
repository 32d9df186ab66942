//! Resolution of names: a spec and the traces it names become two link configurations.

use core::fmt;
use std::sync::Arc;

use marline_time::SeedTree;

use super::{Direction, DuplexSpec, LinkSpec, PingRef, RadioSpec, RadioUse, RateSpec, TraceRef};
use crate::radio::RadioParameters;
use crate::trace::{Opportunities, PingTrace, TraceError};
use crate::{
    DelayConfig, LinkConfig, LossConfig, MiddleboxConfig, RadioConfig, RateConfig, Rebind,
    TraceStart, WalkCycle, WalkCycleProfile,
};

/// Both directions of a link, ready to run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DuplexConfig {
    /// From the client.
    pub up: LinkConfig,
    /// To the client.
    pub down: LinkConfig,
}

/// Error while resolving a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolveError {
    /// None of these files was found.
    NotFound {
        /// The trace's name in the description.
        name: String,
        /// File names that were searched.
        tried: Vec<String>,
    },
    /// A file was found but cannot be used.
    Trace(TraceError),
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResolveError::NotFound { name, tried } => {
                write!(f, "trace `{name}` not found; looked for {}", tried.join(", "))
            }
            ResolveError::Trace(error) => write!(f, "trace {error}"),
        }
    }
}

impl core::error::Error for ResolveError {}

impl From<TraceError> for ResolveError {
    fn from(error: TraceError) -> Self {
        ResolveError::Trace(error)
    }
}

impl DuplexSpec {
    /// Loads traces and draws walks. `read` is called with possible file names until it returns contents. If both
    /// directions use the walk-out model, they share one walk.
    ///
    /// # Errors
    /// If a trace was not found or cannot be parsed.
    pub fn resolve(
        &self,
        seeds: &SeedTree,
        read: &mut dyn FnMut(&str) -> Option<Vec<u8>>,
    ) -> Result<DuplexConfig, ResolveError> {
        Ok(DuplexConfig {
            up: self.up.resolve(Direction::Up, seeds, read)?,
            down: self.down.resolve(Direction::Down, seeds, read)?,
        })
    }
}

impl LinkSpec {
    /// Like [`DuplexSpec::resolve`], for one direction.
    ///
    /// # Errors
    /// If a trace was not found or cannot be parsed.
    pub fn resolve(
        &self,
        direction: Direction,
        seeds: &SeedTree,
        read: &mut dyn FnMut(&str) -> Option<Vec<u8>>,
    ) -> Result<LinkConfig, ResolveError> {
        let mut loss_steps = None;
        let rate = match &self.rate {
            RateSpec::Unlimited => RateConfig::Unlimited,
            RateSpec::Constant(rate) => RateConfig::Constant(*rate),
            RateSpec::Steps(steps) => RateConfig::Steps(Arc::new(steps.clone())),
            RateSpec::Trace(trace) => {
                RateConfig::Trace(read_opportunities(trace, direction, read)?)
            }
            RateSpec::WalkCycle(peak) => {
                let WalkCycleProfile { rate, loss } = WalkCycle { peak: *peak }.draw(seeds);
                loss_steps = Some(loss);
                RateConfig::Steps(rate)
            }
            RateSpec::PhoneMobility(phone) => {
                let profile = phone.draw(seeds);
                let (rate, loss) = profile.steps_of(direction);
                loss_steps = Some(Arc::clone(loss));
                RateConfig::Steps(Arc::clone(rate))
            }
        };
        let mut ping = |wanted: &Option<PingRef>| {
            wanted.as_ref().map(|wanted| read_ping_trace(wanted, read)).transpose()
        };
        let delay = DelayConfig {
            base: self.delay,
            jitter: self.jitter,
            overtaking: self.overtaking,
            trace: ping(&self.rtt)?,
        };
        let loss = LossConfig {
            random: self.loss,
            gilbert_elliott: self.gilbert_elliott,
            pattern: self.drop.clone(),
            steps: loss_steps,
            trace: ping(&self.lost)?,
        };
        let (mtu, queue) = (self.mtu, self.queue);
        let (faults, outage) = (self.faults, self.outage.clone());
        let from_client = direction == Direction::Up;
        let rebind = self.rebind.map(|at| Rebind { at, from_client });
        let middlebox = MiddleboxConfig { rebind, ..self.middlebox.clone() };
        let radio = self.radio.map(|radio| radio.config(direction));
        Ok(LinkConfig { rate, middlebox, mtu, queue, loss, delay, faults, outage, radio })
    }
}

impl RadioSpec {
    fn config(self, direction: Direction) -> RadioConfig {
        let mut parameters = RadioParameters::published(self.kind);
        let waits = match self.wakes {
            RadioUse::Published => parameters.waits_for_promotion(),
            RadioUse::WakesAfter(_) => true,
            RadioUse::Meter => false,
        };
        if let RadioUse::WakesAfter(time) = self.wakes {
            parameters.promotion.lasts = time;
        }
        RadioConfig { parameters, direction, waits }
    }
}

/// Returns the first of `tried` that can be read.
fn find(
    name: &str,
    tried: Vec<String>,
    read: &mut dyn FnMut(&str) -> Option<Vec<u8>>,
) -> Result<(String, Vec<u8>), ResolveError> {
    for file in &tried {
        if let Some(bytes) = read(file) {
            return Ok((file.clone(), bytes));
        }
    }
    Err(ResolveError::NotFound { name: name.to_owned(), tried })
}

fn read_opportunities(
    trace: &TraceRef,
    direction: Direction,
    read: &mut dyn FnMut(&str) -> Option<Vec<u8>>,
) -> Result<TraceStart<Opportunities>, ResolveError> {
    let name = &trace.name;
    let side = match direction {
        Direction::Up => "up",
        Direction::Down => "down",
    };
    let tried = vec![
        format!("{name}.{side}.gz"),
        format!("{name}.{side}"),
        format!("{name}.gz"),
        name.clone(),
    ];
    let (file, bytes) = find(name, tried, read)?;
    let parsed = Arc::new(Opportunities::parse(&file, &bytes)?);
    Ok(TraceStart { trace: parsed, start: trace.start })
}

fn read_ping_trace(
    wanted: &PingRef,
    read: &mut dyn FnMut(&str) -> Option<Vec<u8>>,
) -> Result<TraceStart<PingTrace>, ResolveError> {
    let name = &wanted.trace.name;
    let tried = vec![format!("{name}.csv"), format!("{name}.csv.gz"), name.clone()];
    let (file, bytes) = find(name, tried, read)?;
    let parsed = Arc::new(PingTrace::parse(&file, &bytes, &wanted.carrier)?);
    Ok(TraceStart { trace: parsed, start: wanted.trace.start })
}
