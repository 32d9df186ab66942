//! Stages of the link model, each with its own random streams.

mod delay;
mod loss;
pub(crate) mod middlebox;
mod outage;
mod random;
mod shaper;
mod tcp;

pub(crate) use delay::DelayStage;
pub(crate) use loss::LossStage;
pub(crate) use outage::OutageStage;
pub(crate) use random::{exponential, normal};
pub(crate) use shaper::Shaper;
