//! A repository in a local folder, laid out as restic's: `config`, `keys`, `locks`, `snapshots`, `index`, and `data` with 256 folders.
//!
//! Invariant: a file gets its name when its contents are on stable storage, and its folder is synced before anyone is told.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind as IoErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use block::{Error, Result};

use crate::lock;
use crate::storage::{Kind, Storage, WHOLE_BYTES_MAX};

/// A folder.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    /// Tells partial files of this process from each other.
    counter: AtomicU64,
}

impl Folder {
    /// The repository at `root`, whether or not there is one.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), counter: AtomicU64::new(0) }
    }

    fn folder(&self, kind: Kind) -> PathBuf {
        kind.folder().map_or_else(|| self.root.clone(), |folder| self.root.join(folder))
    }

    fn folder_of(&self, kind: Kind, name: &str) -> PathBuf {
        match kind {
            Kind::Pack => self.folder(kind).join(name.get(..2).unwrap_or(name)),
            _ => self.folder(kind),
        }
    }

    fn path(&self, kind: Kind, name: &str) -> PathBuf {
        let name = if kind == Kind::Config { "config" } else { name };
        self.folder_of(kind, name).join(name)
    }

    /// Every folder that holds files.
    fn folders(&self) -> Vec<PathBuf> {
        let kinds = [Kind::Key, Kind::Lock, Kind::Snapshot, Kind::Index, Kind::Pack];
        let mut folders: Vec<PathBuf> = kinds.into_iter().map(|kind| self.folder(kind)).collect();
        folders.extend((0..256).map(|byte| self.root.join(format!("data/{byte:02x}"))));
        folders
    }

    /// What follows a file's name until it is whole: says whose it is.
    fn partial_suffix() -> String {
        lock::partial_suffix()
    }
}

fn fail<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + 'a {
    move |error| Error::io(what, error).path(path.display())
}

fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(fail("sync", folder))
}

impl Storage for Folder {
    fn place(&self) -> String {
        self.root.display().to_string()
    }

    fn prepare(&self) -> Result<()> {
        let builder = || {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder
        };
        for folder in self.folders() {
            builder().create(&folder).map_err(fail("create", &folder))?;
        }
        let data = self.folder(Kind::Pack);
        let above = self.root.parent().filter(|above| !above.as_os_str().is_empty());
        for folder in [data.as_path(), &self.root, above.unwrap_or(Path::new("."))] {
            sync_folder(folder)?;
        }
        Ok(())
    }

    fn names(&self, kind: Kind) -> Result<Vec<String>> {
        let mut names = Vec::new();
        if kind == Kind::Config {
            names.extend(self.path(kind, "").exists().then(String::new));
            return Ok(names);
        }
        let folders = match kind {
            Kind::Pack => (0..256).map(|byte| self.root.join(format!("data/{byte:02x}"))).collect(),
            _ => vec![self.folder(kind)],
        };
        for folder in folders {
            let entries = match fs::read_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.map_err(fail("list", &folder))?,
            };
            for entry in entries {
                let name = entry.map_err(fail("list", &folder))?.file_name();
                // What is not named by an ID is somebody's half-written file.
                names.extend(name.into_string().ok().filter(|name| crate::Id::from_hex(name).is_some()));
            }
        }
        Ok(names)
    }

    fn read(&self, kind: Kind, name: &str) -> Result<Vec<u8>> {
        let path = self.path(kind, name);
        let len_bytes = fs::metadata(&path).map_err(fail("open", &path))?.len();
        if len_bytes > WHOLE_BYTES_MAX {
            return Err(
                Error::corrupt(format!("a {} of {len_bytes} bytes", kind.word())).path(path.display())
            );
        }
        fs::read(&path).map_err(fail("read", &path))
    }

    fn read_part(&self, kind: Kind, name: &str, offset: u64, len: usize) -> Result<Vec<u8>> {
        let path = self.path(kind, name);
        // Into memory that nobody fills with zeros before.
        let mut bytes = Vec::with_capacity(len);
        let read = File::open(&path).and_then(|mut file| {
            file.seek(SeekFrom::Start(offset))?;
            file.take(len as u64).read_to_end(&mut bytes)
        });
        match read {
            Ok(read) if read == len => Ok(bytes),
            Ok(_) => Err(fail("read", &path)(IoErrorKind::UnexpectedEof.into())),
            Err(error) => Err(fail("read", &path)(error)),
        }
    }

    fn create(&self, kind: Kind, name: &str, contents: &[u8]) -> Result<()> {
        let path = self.path(kind, name);
        let folder = self.folder_of(kind, name);
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let base = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let partial = folder.join(format!("{base}{}-{count}", Self::partial_suffix()));
        let made = (|| {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o400).open(&partial)?;
            file.write_all(contents)?;
            file.sync_all()?;
            fs::rename(&partial, &path)
        })();
        if let Err(error) = made {
            let _ = fs::remove_file(&partial);
            return Err(fail("write", &path)(error));
        }
        sync_folder(&folder)
    }

    fn remove(&self, kind: Kind, name: &str) -> Result<()> {
        let path = self.path(kind, name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(fail("remove", &path)),
        }
    }

    fn clear_partial(&self) -> Result<()> {
        for folder in self.folders() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if lock::is_abandoned(&name) {
                    // Whoever cannot remove it can still go on.
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
        Ok(())
    }
}
