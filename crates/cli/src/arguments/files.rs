//! Arguments of the commands that read the guest's files.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::{ConfineArguments, OUTPUT, OpenArguments, RepositoryArguments, TARGET};

#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// The disk: an image file, a block device, or SNAPSHOT:DISK with --repo
    pub(crate) disk: PathBuf,
    /// The folder or file, from the root of its volume on. With several volumes: its number or name and a colon in front
    #[arg(value_name = "[VOLUME:]PATH")]
    pub(crate) path: OsString,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    #[command(flatten)]
    pub(crate) repository: RepositoryArguments,
    /// List everything below the folder as well
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) recursive: bool,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) confine: ConfineArguments,
}

#[derive(Debug, Args)]
pub(crate) struct CatArguments {
    /// The disk: an image file, a block device, or SNAPSHOT:DISK with --repo
    pub(crate) disk: PathBuf,
    /// The file, from the root of its volume on. With several volumes: its number or name and a colon in front; another stream of the file
    /// behind a colon
    #[arg(value_name = "[VOLUME:]PATH")]
    pub(crate) path: OsString,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    #[command(flatten)]
    pub(crate) repository: RepositoryArguments,
    #[command(flatten)]
    pub(crate) confine: ConfineArguments,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("whereto").required(true).args(["into", "tar"]))]
pub(crate) struct ExtractArguments {
    /// The disk: an image file, a block device, or SNAPSHOT:DISK with --repo
    pub(crate) disk: PathBuf,
    /// Files and folders, from the root of their volume on. With several volumes: its number or name and a colon in front
    #[arg(value_name = "[VOLUME:]PATH", required = true)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    #[command(flatten)]
    pub(crate) repository: RepositoryArguments,
    /// Folder to extract into. It is made if it does not exist
    #[arg(long, value_name = "DIR", help_heading = TARGET)]
    pub(crate) into: Option<PathBuf>,
    /// Tar file to write; - for standard output
    #[arg(long, value_name = "FILE", help_heading = TARGET)]
    pub(crate) tar: Option<PathBuf>,
    /// Replace files that exist
    #[arg(long, help_heading = TARGET)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) confine: ConfineArguments,
}
