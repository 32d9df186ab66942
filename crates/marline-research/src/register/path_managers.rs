//! Registration of path managers.

use marline_algos::{RegisterError, Registry};
use marline_link::radio::RadioKind;

use crate::path_managers::{Emptcp, EmptcpConfig};

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_path_manager_with("emptcp", |parameters| {
        let default = EmptcpConfig::default();
        let radios = [("lte", RadioKind::Lte), ("umts", RadioKind::Umts)];
        let config = EmptcpConfig {
            bytes: parameters.bytes("bytes", default.bytes),
            time: parameters.duration("time", default.time),
            margin: parameters.number("margin", default.margin, 0.0..=0.9),
            supposed: parameters.bytes("supposed", default.supposed),
            retry_after: parameters.duration("again", default.retry_after),
            radio: parameters.word("radio", default.radio.name(), &radios),
        };
        if config.supposed == 0 {
            parameters.refuse("supposed", "a value above zero");
        }
        move || Box::new(Emptcp::new(config))
    })
}
