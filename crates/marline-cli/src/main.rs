//! Marline.
fn main() {}
