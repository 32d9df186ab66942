//! Judges of a run, one file each.
