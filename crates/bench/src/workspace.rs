//! A folder of a run's own, which goes with it.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use block::{Error, Result};

/// What is left free at least, and at most, of a file system; between these a twentieth of it.
const MARGIN_BYTES_MIN: u64 = 64 << 20;
const MARGIN_BYTES_MAX: u64 = 4 << 30;

/// What folders are called that the next run may remove.
const SWEPT_PREFIX: &str = "leandisk-workloads-";

/// A new folder. It is removed with all that is in it when this value goes, unless it is kept.
pub struct Workspace {
    path: PathBuf,
    keeps: bool,
    /// Locked as long as the run goes on.
    _lock: Option<File>,
}

impl Workspace {
    /// Makes a folder in `dir`. `Refused` if `need_bytes` more would leave too little free there.
    pub fn new(dir: &Path, need_bytes: u64) -> Result<Self> {
        let dir = fs::canonicalize(dir).map_err(|error| Error::io("find", error).path(dir.display()))?;
        check_room(&dir, need_bytes)?;
        Self::make(&dir, "leandisk-bench-")
    }

    /// As [`Self::new`], after folders that killed runs left in `dir` were removed. The thread's mounts must be hidden: none of
    /// others is seen in them.
    pub fn swept(dir: &Path, need_bytes: u64) -> Result<Self> {
        let dir = fs::canonicalize(dir).map_err(|error| Error::io("find", error).path(dir.display()))?;
        sweep(&dir)?;
        check_room(&dir, need_bytes)?;
        let mut space = Self::make(&dir, SWEPT_PREFIX)?;
        let locked =
            File::open(&space.path).map_err(|error| Error::io("open", error).path(space.path.display()))?;
        // Nobody else knows of it yet but a sweep that came between: then it is gone, and the first file fails.
        let _ = os::try_lock(&locked, false);
        space._lock = Some(locked);
        Ok(space)
    }

    fn make(dir: &Path, prefix: &str) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("{prefix}{}-{time:x}-{count}", std::process::id()));
        // Fails if the name is taken.
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| Error::io("make", error).path(path.display()))?;
        Ok(Self { path, keeps: false, _lock: None })
    }

    /// Leaves the folder and what is in it where they are.
    #[must_use]
    pub fn kept(mut self) -> Self {
        self.keeps = true;
        self
    }

    /// Whether it stays.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `Refused` if `need_bytes` more would leave too little free.
    pub fn check_room(&self, need_bytes: u64) -> Result<()> {
        check_room(&self.path, need_bytes)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if !self.keeps {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Removes what runs left that were killed: folders of that name that nobody holds locked, once the programs of the run are gone.
fn sweep(dir: &Path) -> Result<()> {
    let failed =
        |error: std::io::Error| Error::io("look for what a killed run left in", error).path(dir.display());
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let process =
            name.strip_prefix(SWEPT_PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        let is_over = process.is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists());
        if !is_over || !entry.file_type().map_err(failed)?.is_dir() {
            continue;
        }
        if File::open(entry.path()).is_ok_and(|folder| os::try_lock(&folder, false)) {
            fs::remove_dir_all(entry.path()).map_err(failed)?;
        }
    }
    Ok(())
}

fn check_room(dir: &Path, need_bytes: u64) -> Result<()> {
    let stat =
        rustix::fs::statvfs(dir).map_err(|error| Error::io("stat", error.into()).path(dir.display()))?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    let margin = (bytes(stat.f_blocks) / 20).clamp(MARGIN_BYTES_MIN, MARGIN_BYTES_MAX);
    let available = bytes(stat.f_bavail);
    if need_bytes.saturating_add(margin) <= available {
        return Ok(());
    }
    let mib = |bytes: u64| bytes >> 20;
    let what = format!(
        "too little space: {} MiB would be written and {} MiB left free, of {} MiB that are free now",
        mib(need_bytes),
        mib(margin),
        mib(available)
    );
    Err(Error::refused(what).path(dir.display()).hint("choose a smaller --size, or another --dir"))
}

/// Waits until nothing of the file system at `dir` waits to be written.
pub(crate) fn write_back(dir: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::io("flush", error).path(dir.display());
    let folder = File::open(dir).map_err(failed)?;
    rustix::fs::syncfs(&folder).map_err(|error| failed(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    #[test]
    fn it_goes_with_all_that_is_in_it_unless_it_is_kept() {
        let dir = testkit::scratch();
        let space = Workspace::new(dir.path(), 0).unwrap();
        fs::create_dir(space.path().join("a")).unwrap();
        fs::write(space.path().join("a/b"), "c").unwrap();
        let path = space.path().to_owned();
        drop(space);
        assert!(!path.exists());
        let path = Workspace::new(dir.path(), 0).unwrap().kept().path().to_owned();
        assert!(path.is_dir());
    }

    #[test]
    fn what_killed_runs_left_goes_and_what_others_use_stays() {
        let dir = testkit::scratch();
        // No process has the largest number.
        let left = dir.path().join(format!("{SWEPT_PREFIX}4194305-1-0"));
        let other = dir.path().join("leandisk-workloads");
        let held = dir.path().join(format!("{SWEPT_PREFIX}4194306-1-0"));
        for folder in [&left, &other, &held] {
            fs::create_dir_all(folder.join("a")).unwrap();
        }
        let lock = File::open(&held).unwrap();
        assert!(os::try_lock(&lock, false));
        let running = Workspace::swept(dir.path(), 0).unwrap();
        let next = Workspace::swept(dir.path(), 0).unwrap();
        assert!(!left.exists() && other.exists() && held.exists());
        assert!(running.path().exists() && next.path().exists());
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let dir = testkit::scratch();
        let error = Workspace::new(dir.path(), u64::MAX).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
