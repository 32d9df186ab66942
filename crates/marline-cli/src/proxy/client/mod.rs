//! The near end of the proxy: takes applications' connections and opens their targets.

pub mod pool;
pub mod tunnel;

#[cfg(test)]
mod tests;
