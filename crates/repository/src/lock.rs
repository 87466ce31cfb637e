//! Who uses a repository: files in `locks`, as restic makes them.
//!
//! Whoever reads or adds has a lock that others may have beside it; whoever removes (`prune`) has an exclusive one. A lock is written
//! first, and then the others are looked at, so that of two who come at once at least one sees the other. A lock is refreshed every five
//! minutes; one that was not for half an hour, or whose process on this host has ended, is stale, and is removed.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use block::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::storage::Kind;
use crate::unlocked::Unlocked;
use crate::{Id, time};

const REFRESH_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// restic's own limit.
const STALE_NS: i128 = 30 * 60 * 1_000_000_000;

#[derive(Clone, Serialize, Deserialize, Debug)]
struct LockFile {
    time: String,
    exclusive: bool,
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    pid: u32,
    #[serde(default)]
    uid: u32,
    #[serde(default)]
    gid: u32,
}

impl LockFile {
    fn of_this_process() -> Self {
        Self {
            time: time::now(),
            exclusive: false,
            hostname: host_name(),
            username: user_name(),
            pid: std::process::id(),
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        }
    }

    fn is_stale(&self) -> bool {
        time::age_ns(&self.time) > STALE_NS || (self.hostname == host_name() && !is_running(self.pid))
    }
}

/// The repository is in use for as long as this lives.
#[derive(Debug)]
pub(crate) struct Lock {
    repository: Arc<Unlocked>,
    held: Arc<Mutex<Id>>,
    /// Its end stops the thread.
    stop: Option<Sender<()>>,
    refresher: Option<JoinHandle<()>>,
}

impl Lock {
    /// `Refused` if somebody has the repository for themselves.
    pub(crate) fn take(repository: Arc<Unlocked>) -> Result<Self> {
        let held = create(&repository)?;
        let lock = Self { repository, held: Arc::new(Mutex::new(held)), stop: None, refresher: None };
        // From here on dropping it removes the file.
        check_others(&lock.repository, held)?;
        Ok(lock.refreshed())
    }

    fn refreshed(mut self) -> Self {
        let (stop, stopped) = mpsc::channel();
        let (repository, held) = (self.repository.clone(), self.held.clone());
        self.stop = Some(stop);
        self.refresher = Some(std::thread::spawn(move || {
            while stopped.recv_timeout(REFRESH_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // One that cannot be refreshed is tried again in time: it is stale after half an hour only.
                let Ok(new) = create(&repository) else { continue };
                let old = std::mem::replace(&mut *held.lock().expect("nobody panics with it"), new);
                let _ = repository.storage().remove(Kind::Lock, &old.to_string());
            }
        }));
        self
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(refresher) = self.refresher.take() {
            let _ = refresher.join();
        }
        let held = self.held.lock().map(|held| held.to_string()).unwrap_or_default();
        let _ = self.repository.storage().remove(Kind::Lock, &held);
    }
}

fn create(repository: &Unlocked) -> Result<Id> {
    Ok(repository.save_json(Kind::Lock, &LockFile::of_this_process())?.0)
}

fn check_others(repository: &Unlocked, own: Id) -> Result<()> {
    for name in repository.storage().names(Kind::Lock)? {
        if name == own.to_string() {
            continue;
        }
        let found = match repository.load_json::<LockFile>(Kind::Lock, &name) {
            Ok(found) => found,
            // It was removed meanwhile.
            Err(error) if error.io_source().is_some_and(|io| io.kind() == std::io::ErrorKind::NotFound) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        if found.is_stale() {
            let _ = repository.storage().remove(Kind::Lock, &name);
        } else if found.exclusive {
            let LockFile { pid, hostname, username, time, .. } = found;
            return Err(Error::refused(format!(
                "the repository is locked exclusively by process {pid} on {hostname} ({username}) since {time}"
            ))
            .hint("wait until it is done; if it is gone, 'restic unlock' removes its lock")
            .path(repository.storage().place()));
        }
    }
    Ok(())
}

/// This host's name, as restic tells it.
pub fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}

/// Who runs this process.
pub(crate) fn user_name() -> String {
    std::env::var("USER").unwrap_or_else(|_| rustix::process::getuid().as_raw().to_string())
}

/// What follows a file's name until it is whole begins with this.
const PARTIAL_MARK: &str = "-tmp-leandisk-";

/// What follows a file's name until it is whole: says whose it is.
pub fn partial_suffix() -> String {
    format!("{PARTIAL_MARK}{}-{}", host_name(), std::process::id())
}

/// Whether a file of this name is half-written, by a process of this host that has ended.
pub fn is_abandoned(name: &str) -> bool {
    // Nearly all names end here: who this host is takes a file to be read.
    let Some((_, whose)) = name.split_once(PARTIAL_MARK) else { return false };
    let of_here = whose.strip_prefix(&host_name()).and_then(|rest| rest.strip_prefix('-'));
    let process = of_here.and_then(|rest| rest.split('-').next()?.parse().ok());
    process.is_some_and(|process| !is_running(process))
}

/// Whether this host has such a process.
pub(crate) fn is_running(process: u32) -> bool {
    std::path::Path::new("/proc").join(process.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;
    use crate::{KeyCost, Memory, Repository};

    #[test]
    fn an_exclusive_lock_forbids_unless_it_is_stale() {
        let memory = Arc::new(Memory::default());
        let repository = Repository::init_with_cost(memory, b"password", KeyCost::LEAST).unwrap();
        let inner = &repository.inner;
        let here = LockFile { exclusive: true, ..LockFile::of_this_process() };
        let put = |file: &LockFile| inner.save_json(Kind::Lock, file).unwrap().0.to_string();
        let names = || inner.storage().names(Kind::Lock).unwrap();

        let held = put(&here);
        let error = Lock::take(inner.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(names().contains(&held) && names().len() == 2, "the one that was refused is gone");
        inner.storage().remove(Kind::Lock, &held).unwrap();

        // Processes have no numbers as high as that.
        let ended = put(&LockFile { pid: u32::MAX, ..here.clone() });
        let old = put(&LockFile {
            time: "2020-01-01T00:00:00Z".into(),
            hostname: "elsewhere".into(),
            ..here.clone()
        });
        let shared = put(&LockFile { exclusive: false, hostname: "elsewhere".into(), ..here });
        Lock::take(inner.clone()).unwrap();
        assert!(!names().contains(&ended) && !names().contains(&old) && names().contains(&shared));
    }
}
