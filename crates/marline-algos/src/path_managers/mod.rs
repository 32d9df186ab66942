//! Path managers: which subflows exist.

mod backup;
mod break_before_make;
mod full_mesh;
mod manual;
mod mesh;
mod radio_sleep;

pub use backup::Backup;
pub use break_before_make::{BreakBeforeMake, BreakBeforeMakeConfig};
pub use full_mesh::FullMesh;
pub use manual::Manual;
pub use mesh::starts_at;

#[cfg(test)]
mod testing;
