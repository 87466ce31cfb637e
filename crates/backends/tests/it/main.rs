//! Places on other machines, which are servers on this one: one suite for all, and what faults leave.

// Tests by themselves: what fails ends the test, and what is printed says what was skipped.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod conformance;
mod faults;
mod rclone;
mod refused;
mod s3;
mod sftp;
mod tls;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use backends::{Limits, Options};
use repository::Storage;
use testkit::noise;

/// Short ones: what answers here answers at once.
fn limits() -> Limits {
    Limits {
        connect: Duration::from_secs(5),
        silence: Duration::from_secs(20),
        first_pause: Duration::from_millis(1),
        pause_max: Duration::from_millis(4),
        attempt_count: 12,
    }
}

fn options(extended: &[(&str, &str)]) -> Options {
    let extended = extended.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Options { extended, limits: limits(), ..Options::default() }
}

/// The place, with these variables and no others.
fn open(name: &str, options: &Options, variables: &[(&str, &str)]) -> block::Result<Arc<dyn Storage>> {
    let variables: BTreeMap<_, _> = variables.iter().copied().collect();
    backends::open(name, options, &|name| variables.get(name).map(|value| (*value).to_owned()))
}
