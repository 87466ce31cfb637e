//! The command line of `report`.

use std::path::PathBuf;

use clap::Args;

use super::{OUTPUT, WORKLOAD};

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// What --json printed of the state before: analyze, stats, defrag, compact, copy or bench fragmentation; or a list of 'analyze --files', from which
    /// the worst file is drawn. May be repeated
    #[arg(long, value_name = "FILE", required_unless_present = "print_assumptions", help_heading = WORKLOAD)]
    pub(crate) before: Vec<PathBuf>,
    /// The same of the state after. A document of defrag, compact or copy knows both states, and may be given on both sides. May be repeated
    #[arg(long, value_name = "FILE", required_unless_present = "print_assumptions", help_heading = WORKLOAD)]
    pub(crate) after: Vec<PathBuf>,
    /// Prices and habits to compute savings with (TOML) [default: what --print-assumptions prints]
    #[arg(long, value_name = "FILE", help_heading = WORKLOAD)]
    pub(crate) roi: Option<PathBuf>,
    /// Print the assumptions, to be changed and given to --roi, and end
    #[arg(long, exclusive = true, help_heading = OUTPUT)]
    pub(crate) print_assumptions: bool,
    /// Write the report as an HTML page to this file
    #[arg(short = 'o', long = "output", value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) output: Option<PathBuf>,
    /// Replace the output file if it exists
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) force: bool,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}
