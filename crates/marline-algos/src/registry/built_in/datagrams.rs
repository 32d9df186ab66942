//! Built-in datagram policies.

use marline_policy::PathId;
use marline_time::Rate;

use super::{RegisterError, Registry};
use crate::NamedDatagramPolicy;
use crate::datagrams::{Auto, AutoConfig, Duplicate, MinRtt, SinglePath};
use crate::schedulers::BudgetConfig;

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_datagram_policy_with("auto", |parameters| {
        let default = BudgetConfig::default();
        let share = parameters.number_or_unlimited("budget", default.share, 0.0..=10.0);
        let free = if share == 0.0 { Rate::ZERO } else { default.rate };
        let repairs = parameters.on_off("repairs", AutoConfig::default().repairs);
        let config = AutoConfig { budget: BudgetConfig { share, rate: free }, repairs };
        move || Box::new(Auto::new(config))
    })?;
    registry.register_datagram_policy_with("one-path", |parameters| {
        let path = PathId(parameters.count("path", 0, 0..=31) as u8);
        move || Box::new(SinglePath::new(path))
    })?;
    registry
        .register_datagram_policy(NamedDatagramPolicy::new("duplicate", || Box::new(Duplicate)))?;
    registry.register_datagram_policy(NamedDatagramPolicy::new("min-rtt", || Box::new(MinRtt)))
}
