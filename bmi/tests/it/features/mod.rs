//! What a feature of the package adds.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "tower")]
mod tower;
#[cfg(feature = "typed")]
mod typed;
