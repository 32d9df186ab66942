//! Manual change of a path.

/// Change of a path by hand.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
#[non_exhaustive]
pub enum PathChange {
    /// Use the path (again).
    Up,
    /// Close its subflows and open none.
    Down,
    /// Carry data only if no other path can.
    Backup,
    /// Carry data like any other path.
    Primary,
    /// Traffic is charged from now on.
    Metered,
    /// Traffic is not charged, and counts against no allowance.
    Unmetered,
    /// Traffic counts against an allowance: idle capacity is not used for copies.
    Limited,
    /// The path is expected to disappear soon, because its radio signal fades: new data is sent elsewhere if
    /// possible.
    Fading,
    /// The path is expected to stay.
    Steady,
}
