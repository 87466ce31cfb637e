//! The command lines of `guard`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{CHANGE, OUTPUT, SAFETY, examples};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct GuardArguments {
    #[command(subcommand)]
    pub(crate) command: Option<GuardCommand>,
    /// Folders to guard, on ext4, XFS or Btrfs [default: all such file systems that are mounted for writing]
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) state: StateArguments,
    /// Only look, and count what would be done
    #[arg(long, help_heading = SAFETY)]
    pub(crate) dry_run: bool,
    /// Do not put files together that were closed in pieces
    #[arg(long, help_heading = CHANGE)]
    pub(crate) no_repair: bool,
    /// Do not reserve room for files that grow
    #[arg(long, help_heading = CHANGE)]
    pub(crate) no_prevent: bool,
    /// Do not bring free space together where new files would not find room in one piece
    #[arg(long, help_heading = CHANGE)]
    pub(crate) no_consolidate: bool,
    /// Move files only if nothing was written to their file system for so long
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_seconds, help_heading = CHANGE)]
    pub(crate) idle: Duration,
    /// Also give the counts to Prometheus: an address and port to answer at, or a file for its node exporter
    #[arg(long, value_name = "ADDR:PORT|FILE", help_heading = OUTPUT)]
    pub(crate) metrics: Option<String>,
    /// Socket or port of the coordinator to ask before files are moved [default: the port of the hypervisor, or a coordinator on
    /// this machine, if there is one]
    #[arg(long, value_name = "SOCKET", help_heading = CHANGE)]
    pub(crate) coordinator: Option<PathBuf>,
    /// Where the kernel says how long others waited
    #[arg(long, value_name = "DIR", default_value = "/proc/pressure", hide = true)]
    pub(crate) pressure: PathBuf,
    /// Where the kernel counts what devices do, by their numbers
    #[arg(long, value_name = "DIR", default_value = "/sys/dev/block", hide = true)]
    pub(crate) device_counters: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct StateArguments {
    /// Folder for the ledger of what is reserved, the lock and the status [default: /var/lib/leandisk and /run/leandisk]
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GuardCommand {
    /// Show what the guard did, and what it does now
    #[command(after_help = examples::GUARD_STATUS)]
    Status(GuardStatusArguments),
    /// Show what was prevented and repaired day by day, also as a page
    #[command(after_help = examples::GUARD_REPORT)]
    Report(GuardReportArguments),
}

#[derive(Debug, Args)]
pub(crate) struct GuardStatusArguments {
    #[command(flatten)]
    pub(crate) state: StateArguments,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GuardReportArguments {
    #[command(flatten)]
    pub(crate) state: StateArguments,
    /// Days up to today (UTC) to show; the history keeps 400
    #[arg(long, value_name = "N", default_value = "14", value_parser = clap::value_parser!(u32).range(1..=400), help_heading = OUTPUT)]
    pub(crate) days: u32,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// Also write the report as an HTML page with a chart
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) html: Option<PathBuf>,
    /// Replace the output file if it exists
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) force: bool,
}

impl GuardReportArguments {
    pub(crate) fn options(&self) -> leandisk::guard::ReportOptions {
        leandisk::guard::ReportOptions {
            state: self.state.state.clone(),
            days: self.days,
            html: self.html.clone(),
            force: self.force,
        }
    }
}

impl GuardArguments {
    pub(crate) fn options(&self) -> leandisk::guard::Options {
        leandisk::guard::Options {
            paths: self.paths.clone(),
            state: self.state.state.clone(),
            dry_run: self.dry_run,
            repairs: !self.no_repair,
            prevents: !self.no_prevent,
            consolidates: !self.no_consolidate,
            idle: self.idle,
            metrics: self.metrics.clone(),
            pressure: self.pressure.clone(),
            device_counters: self.device_counters.clone(),
            coordinator: self.coordinator.clone(),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct CoordinateArguments {
    /// Folder for the sockets: host.sock for guards of this machine, guests.sock for the QEMUs of its guests
    #[arg(long, value_name = "DIR", default_value = leandisk::coordinate::LISTEN_FOLDER)]
    pub(crate) listen_dir: PathBuf,
    /// Where the kernel says how long others waited
    #[arg(long, value_name = "DIR", default_value = "/proc/pressure", hide = true)]
    pub(crate) pressure: PathBuf,
    /// How long a lease is
    #[arg(long, value_name = "MILLISECONDS", default_value = "2000", value_parser = clap::value_parser!(u64).range(500..=600_000), hide = true)]
    pub(crate) lease: u64,
}

impl CoordinateArguments {
    pub(crate) fn options(&self) -> leandisk::coordinate::Options {
        leandisk::coordinate::Options {
            listen_folder: self.listen_dir.clone(),
            limits: leandisk::coordinate::Limits { lease_ms: self.lease, ..Default::default() },
            pressure: self.pressure.clone(),
        }
    }
}

/// A day at most.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    match seconds {
        0.0..=86_400.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("from 0 to 86400 seconds".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_read() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "-1", "NaN", "inf", "1e9", "2s"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
