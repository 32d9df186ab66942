//! Path managers: which subflows exist.

mod backup;
mod full_mesh;
mod manual;
mod mesh;

pub use backup::Backup;
pub use full_mesh::FullMesh;
pub use manual::Manual;

#[cfg(test)]
mod testing;
