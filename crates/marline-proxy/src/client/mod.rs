//! The near end of the proxy: takes applications' connections and opens their targets.

mod admission;
mod backoff;
pub mod current;
pub mod dialer;
pub mod direct;
pub mod front;
mod leased;
pub mod open;
pub mod pool;
pub mod tunnel;
mod used;

#[cfg(test)]
mod front_tests;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod tests;
