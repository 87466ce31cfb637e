//! Disks made for a run, and what became of them.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use block::{HostExtent, HostFile as _, Result};
use engine::{CreateJob, JobMonitor, Provision};
use filesystem::Fragments;
use image::{CreateOptions, Format};
use os::{NewFile, SourceFile};

/// Workers that zero.
const THREAD_COUNT: usize = 4;

/// What an image takes at most: its virtual disk, tables, a log.
pub(crate) fn image_bytes_max(virtual_bytes: u64) -> u64 {
    virtual_bytes.saturating_add(virtual_bytes / 50).saturating_add(16 << 20)
}

/// A file's name for an image of this format.
pub(crate) fn image_name(stem: &str, format: Format) -> String {
    format!("{stem}.{format}")
}

/// Makes a disk at `path`, where nothing is.
pub(crate) fn make(
    path: &Path,
    format: Format,
    virtual_bytes: u64,
    provision: Provision,
    monitor: &dyn JobMonitor,
) -> Result<()> {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let options = CreateOptions {
        virtual_bytes,
        sector_bytes: 512,
        compress: false,
        keys: std::collections::BTreeMap::default(),
        identity_seed: created.as_nanos() ^ (u128::from(std::process::id()) << 96),
        created_unix_seconds: created.as_secs(),
        file_name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        target_is_dirty: false,
    };
    let writer = image::create(format, options)?;
    let target = NewFile::create_direct(path, false)?;
    let job = CreateJob { writer, target: &target, virtual_bytes, provision, thread_count: THREAD_COUNT };
    job.run(monitor).map_err(|error| error.path(path.display()))?;
    target.publish()
}

/// How a file lies on the host.
pub(crate) struct OnHost {
    pub(crate) filesystem: Option<String>,
    pub(crate) allocated_bytes: u64,
    /// As filefrag counts them; `None` where the host does not tell.
    pub(crate) extents: Option<u64>,
}

pub(crate) fn on_host(path: &Path) -> Result<OnHost> {
    let file = SourceFile::open(path)?;
    let count = |extents: Vec<HostExtent>| {
        let mut fragments = Fragments::as_filefrag();
        for extent in extents {
            fragments.push(extent.span.start().get(), extent.device.get(), extent.span.len_bytes());
        }
        fragments.count()
    };
    Ok(OnHost {
        filesystem: file.host_filesystem(),
        allocated_bytes: file.allocated_bytes()?,
        extents: file.host_extents()?.map(count),
    })
}
