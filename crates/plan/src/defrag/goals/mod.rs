//! What is to be reached, and in which order it is tried: one file for each goal, and for what is anchored.

pub(crate) mod anchored;
pub(crate) mod exchange;
pub(crate) mod files;
pub(crate) mod free;
pub(crate) mod pack;
pub(crate) mod units;
