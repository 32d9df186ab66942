//! Manual change of a path.

/// Change made to a path by hand.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
#[non_exhaustive]
pub enum PathChange {
    /// Use the path, possibly again.
    Up,
    /// Close the path's subflows and open no new ones.
    Down,
    /// Carry data only if no other path can.
    Backup,
    /// Carry data like any other path.
    Primary,
    /// Traffic is charged.
    Metered,
    /// Traffic is neither charged nor counted against an allowance.
    Unmetered,
    /// Traffic counts against an allowance: idle capacity is not used for copies.
    Limited,
    /// The path is expected to disappear soon, because its radio signal fades: new data is sent on other paths if
    /// possible.
    Fading,
    /// The path is expected to stay.
    Steady,
}
