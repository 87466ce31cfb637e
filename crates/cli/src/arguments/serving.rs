//! The command lines of `serve` and `stats`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{
    CHANGE, Confine, LogArguments, NETWORK, OUTPUT, OpenArguments, Provision, RepositoryArguments, SAFETY,
    TUNING,
};

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// The disk: an image file or a block device that nothing else is using. With --read-only also an export of a server, or a disk of a
    /// running QEMU guest (qmp:SOCKET?disk=NAME) as it is at one moment. Each of several is an export of its own
    #[arg(required = true, value_name = "DISK")]
    pub(crate) disks: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
    #[command(flatten)]
    pub(crate) log: LogArguments,
    #[command(flatten)]
    pub(crate) repository: RepositoryArguments,
    /// Listen on this Unix socket, which only this user may use. 'leandisk stats' reads its statistics from it. Sockets that
    /// systemd passes (LISTEN_FDS) are listened on as well
    #[arg(long, value_name = "PATH", help_heading = NETWORK)]
    pub(crate) socket: Option<PathBuf>,
    /// Permissions of the socket, such as 0660. Whoever may write to it can use the disk [default: 0600]
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode, requires = "socket", help_heading = NETWORK)]
    pub(crate) socket_mode: Option<u32>,
    /// Give the socket to this group, by name or number
    #[arg(long, value_name = "GROUP", requires = "socket", help_heading = NETWORK)]
    pub(crate) socket_group: Option<String>,
    /// Listen on this TCP address and port. Anything but the loopback address needs TLS or --insecure
    #[arg(long, value_name = "ADDR:PORT", help_heading = NETWORK)]
    pub(crate) listen: Option<SocketAddr>,
    /// Of a disk of a snapshot: write to this QCOW2 image what clients write, and read all else from the repository. It is made if it is
    /// not there, and belongs to that disk from then on. With several disks: once for each, in their order
    #[arg(long, value_name = "FILE", conflicts_with = "read_only", help_heading = CHANGE)]
    pub(crate) overlay: Vec<PathBuf>,
    /// Of a disk of a snapshot: restore it to this new image while it is served. Clients write to it, and what is not there yet is brought in
    /// the background; it has its name once it is complete. The format is that of the name's extension. With several disks: once for
    /// each, in their order
    #[arg(long, value_name = "TARGET", conflicts_with_all = ["read_only", "overlay", "compact_at_close"], help_heading = CHANGE)]
    pub(crate) into: Vec<PathBuf>,
    /// Refuse all writes
    #[arg(long, help_heading = CHANGE)]
    pub(crate) read_only: bool,
    /// Let free space, page files and swap read as zeros, as 'leandisk copy' leaves them out, so that programs that copy or back up the
    /// disk need not read them. A volume that is not understood is served whole
    #[arg(long, requires = "read_only", help_heading = CHANGE)]
    pub(crate) lean: bool,
    /// How much of its space the disk keeps when the guest discards data [default: as the disk was created]
    #[arg(long, value_enum, value_name = "WHEN", help_heading = CHANGE)]
    pub(crate) provision: Option<Provision>,
    /// Where what is written for the first time goes in the file of a thin disk
    #[arg(long, value_enum, value_name = "HOW", default_value = "dense", help_heading = CHANGE)]
    pub(crate) placement: Placement,
    /// When the last client is gone and the disk is closed, give back what the guest does not use, as 'leandisk compact' does. What that
    /// would refuse stays as it is, with the reason
    #[arg(long, conflicts_with = "read_only", help_heading = CHANGE)]
    pub(crate) compact_at_close: bool,
    /// Name of the NBD export [default: the file's name]. With several disks: once for each, in their order
    #[arg(long, help_heading = NETWORK)]
    pub(crate) name: Vec<String>,
    /// Use TLS on the TCP address, with this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key", requires = "listen", help_heading = NETWORK)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = NETWORK)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate that this authority signed (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = NETWORK)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Listen on the network without TLS: whoever reaches the address can read and write the disk
    #[arg(long, help_heading = NETWORK)]
    pub(crate) insecure: bool,
    /// Record every request in this new file, for 'leandisk stats' and 'leandisk analyze --trace'. It takes 1 GiB at most. With
    /// several disks: once for each, in their order
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) trace: Vec<PathBuf>,
    /// Serve metrics for Prometheus at this loopback address and port
    #[arg(long, value_name = "ADDR:PORT", help_heading = OUTPUT)]
    pub(crate) metrics: Option<SocketAddr>,
    /// Answer reads and writes no earlier than such a storage would: a model, to measure clients with, not for disks that are in earnest
    /// use. As if the virtual disk lay in one piece
    #[arg(long, value_name = "KIND", value_enum, help_heading = TUNING)]
    pub(crate) simulate: Option<Simulate>,
    /// Whether the program, before it lets clients in, closes itself in with the files and sockets that it has open: it can open no other
    /// file, start no program and reach no network (Landlock and seccomp)
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto", help_heading = SAFETY)]
    pub(crate) confine: Confine,
}

/// A kind of storage that a served disk stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Simulate {
    /// A 7200 rpm disk
    Hdd,
    /// An array behind a network
    San,
}

/// Where units of a thin disk go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Placement {
    /// Together, so that the file is about as long as what it holds
    Dense,
    /// As far from each other as on the disk: the file may look as long as the disk
    Mirror,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArguments {
    /// The socket of 'leandisk serve'; or a file with what an earlier --json printed, or a recording of 'serve --trace' or
    /// of blktrace
    pub(crate) source: PathBuf,
    /// A second source, to compare with the first. Needs --html
    #[arg(requires = "html", conflicts_with_all = ["json", "csv"])]
    pub(crate) later: Option<PathBuf>,
    /// Which export, by its name, where several are served
    #[arg(long, value_name = "NAME", help_heading = OUTPUT)]
    pub(crate) export: Option<String>,
    /// Print one JSON document instead of text (see docs/json.md)
    #[arg(long, help_heading = OUTPUT, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Also write the statistics as an HTML page with charts
    #[arg(long, value_name = "FILE", conflicts_with = "csv", help_heading = OUTPUT)]
    pub(crate) html: Option<PathBuf>,
    /// Replace the output file if it exists
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) force: bool,
    /// Print the histograms as CSV, in the form of 'vscsiStats -p all -c'
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) csv: bool,
    /// Print what was asked of the disks every so many seconds, until the server ends or this is interrupted: a line for each, or with
    /// --json a document a line
    #[arg(long, value_name = "SECONDS", value_parser = parse_interval, conflicts_with_all = ["csv", "html", "later"], help_heading = OUTPUT)]
    pub(crate) watch: Option<Duration>,
}

/// Seconds between two lines, with a fraction if wanted.
fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("'{text}' is no number of seconds"))?;
    match seconds {
        0.1..=86_400.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("'{text}' is not from 0.1 to 86400 seconds")),
    }
}

/// Permissions as chmod(1) takes them, without those that a socket has no use for.
fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("'{text}' is not an octal number from 0 to 0777, such as 0660"))
}
