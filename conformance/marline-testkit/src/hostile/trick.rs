//! Manipulations by a hostile network.

use std::time::Duration;

/// Treatment of later segments.
#[derive(Clone, Debug)]
pub(super) enum Manipulation {
    Drop,
    Repeat(Duration),
    Late(Duration),
    Corrupt { at: u16, with: u8 },
    Forge { at: u16, with: u8 },
}
