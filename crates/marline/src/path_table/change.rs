//! Change of a path by hand.

/// A change of a path by hand.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum PathChange {
    /// Use it (again).
    Up,
    /// Close its subflows and open none.
    Down,
    /// Carry data only if nothing else can.
    Backup,
    /// Carry data as any other.
    Primary,
    /// Bytes on it cost money from now on.
    Metered,
    /// Bytes on it cost nothing.
    Unmetered,
    /// It will soon be gone, as its radio's signal fades: new data goes elsewhere if it can.
    Fading,
    /// It will stay.
    Steady,
}
