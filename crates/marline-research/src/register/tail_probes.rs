//! Registration of the tail loss probe wrappers for schedulers.

use marline_algos::{RegisterError, Registry};

use crate::schedulers::{SilentOriginalAction, TailProbes};

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    registry
        .register_scheduler_wrapper("tlp-std", |_| |base| Box::new(TailProbes::standard(base)))?;
    registry.register_scheduler_wrapper("tlp-mp", |parameters| {
        let words =
            [("reinject", SilentOriginalAction::Reinject), ("rto", SilentOriginalAction::Rto)];
        let after = parameters.word("after", "reinject", &words);
        move |base| Box::new(TailProbes::across_paths(base, after))
    })
}
