//! Activities that read files, and copy them.

use std::fs::{self, File};
use std::io::{BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

use block::{Error, Result};
use engine::JobMonitor;
use xxhash_rust::xxh3::Xxh3;

use super::Scene;
use super::contents::{check_entries, read_whole};
use super::documents::open_document;

/// What is read and written at a time.
const PART_BYTES: usize = 128 << 10;

/// Below the guest's mount, where the tree is copied to.
const COPY: &str = "copy";
/// On the second disk.
const BACKUP: &str = "backup";

/// Copies the tree beside itself.
pub(super) fn copy_tree(scene: &Scene<'_>) -> Result<()> {
    let mut part = vec![0; PART_BYTES];
    for entry in &scene.manifest.tree {
        scene.check_cancel()?;
        let (from, to) = (scene.point.join(&entry.path), scene.point.join(COPY).join(&entry.path));
        copy_file(&from, &to, &mut part).map_err(|error| failed("copy", &from, error))?;
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path, part: &mut [u8]) -> std::io::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    let (mut from, mut to) = (File::open(from)?, File::create_new(to)?);
    loop {
        match from.read(part)? {
            0 => return Ok(()),
            count => to.write_all(&part[..count])?,
        }
    }
}

/// Whether the copy is what the tree is.
pub(super) fn check_copy(scene: &Scene<'_>) -> Result<u64> {
    check_entries(&scene.point.join(COPY), &scene.manifest.tree, scene.monitor)
}

/// Opens each document.
pub(super) fn open_documents(scene: &Scene<'_>) -> Result<()> {
    for entry in &scene.manifest.documents {
        scene.check_cancel()?;
        let path = scene.point.join(&entry.path);
        let bytes = fs::read(&path).map_err(|error| failed("open", &path, error))?;
        if open_document(&bytes).is_none_or(|paragraphs| paragraphs == 0) {
            return Err(Error::mismatch("a document does not open").path(path.display()));
        }
    }
    Ok(())
}

/// Reads all files of the activities, in the order of their names, into one archive on another disk.
pub(super) fn back_up(scene: &Scene<'_>) -> Result<()> {
    let path = scene.second.join(BACKUP);
    let archive = File::create_new(&path).map_err(|error| failed("make", &path, error))?;
    let mut out = BufWriter::with_capacity(1 << 20, archive);
    let mut part = vec![0; PART_BYTES];
    for entry in scene.manifest.all() {
        scene.check_cancel()?;
        let from = scene.point.join(&entry.path);
        let copied = File::open(&from).and_then(|mut file| {
            loop {
                match file.read(&mut part)? {
                    0 => return Ok(()),
                    count => out.write_all(&part[..count])?,
                }
            }
        });
        copied.map_err(|error| failed("back up", &from, error))?;
    }
    let archive = out.into_inner().map_err(|error| failed("write", &path, error.into_error()))?;
    archive.sync_data().map_err(|error| failed("flush", &path, error))
}

/// Whether the archive holds what the files do. It is removed.
pub(super) fn check_backup(scene: &Scene<'_>) -> Result<u64> {
    let path = scene.second.join(BACKUP);
    let mut archive = File::open(&path).map_err(|error| failed("open", &path, error))?;
    let mut count = 0;
    for entry in scene.manifest.all() {
        let mut bytes = vec![0; usize::try_from(entry.bytes).unwrap_or(usize::MAX)];
        archive.read_exact(&mut bytes).map_err(|error| failed("read", &path, error))?;
        if xxhash_rust::xxh3::xxh3_64(&bytes) != entry.hash {
            return Err(Error::mismatch("the backup is not what was backed up").path(entry.path.display()));
        }
        count += 1;
    }
    fs::remove_file(&path).map_err(|error| failed("remove", &path, error))?;
    Ok(count)
}

/// Reads every file on the disk. Answers how many they are, and a number that stands for all contents.
pub(super) fn scan(point: &Path, monitor: &dyn JobMonitor) -> Result<(u64, u64)> {
    let (mut all, mut count) = (Xxh3::new(), 0);
    for path in files_below(point)? {
        if monitor.is_cancelled() {
            return Err(Error::interrupted());
        }
        let (bytes, hash) = read_whole(&path).map_err(|error| failed("read", &path, error))?;
        all.update(path.strip_prefix(point).unwrap_or(&path).as_os_str().as_encoded_bytes());
        all.update(&bytes.to_le_bytes());
        all.update(&hash.to_le_bytes());
        count += 1;
    }
    Ok((count, all.digest()))
}

/// All regular files, in the order of their names.
pub(super) fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |error| failed("list", &folder, error);
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            match entry.file_type().map_err(failed)? {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

pub(super) fn failed(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::io(what, error).path(path.display())
}
