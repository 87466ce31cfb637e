//! Plans against a simulated volume: an array of clusters, each with whose it is.

mod examples;
mod image_units;
mod model;
mod oracle;
mod random;
mod turns;
