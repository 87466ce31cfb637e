//! Mail on the server's side, a file a message, and on the client's, one file for all.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::Path;

use block::{Error, Result};

use super::Scene;
use super::contents::{check_entries, read_whole};
use super::messages::{mbox_of, message, push};
use crate::content::Random;

/// Seeds of messages that arrive while it is measured.
const ARRIVING_SEED: u64 = 1 << 40;
/// Each of these is removed when the mbox is packed.
const REMOVED_SHARE: u64 = 4;

fn arriving(scene: &Scene<'_>) -> impl Iterator<Item = (u64, Vec<u8>)> {
    let mut random = Random::new(ARRIVING_SEED);
    (0..scene.sizes.arriving)
        .map(move |index| (index, message(1024 + random.below(31 << 10), ARRIVING_SEED + index)))
}

/// Messages arrive, each on stable storage before the next one is taken; then all are read, as an index is made.
pub(super) fn serve_mail(scene: &Scene<'_>) -> Result<()> {
    let maildir = scene.point.join("data/maildir");
    let failed = |error| Error::io("deliver mail", error).path(maildir.display());
    for name in ["tmp", "new"] {
        fs::create_dir_all(maildir.join(name)).map_err(failed)?;
    }
    let new = File::open(maildir.join("new")).map_err(failed)?;
    for (index, bytes) in arriving(scene) {
        scene.check_cancel()?;
        deliver(&maildir, &new, index, &bytes).map_err(failed)?;
    }
    check_entries(scene.point, &scene.manifest.maildir, scene.monitor).map(drop)
}

fn deliver(maildir: &Path, new: &File, index: u64, bytes: &[u8]) -> std::io::Result<()> {
    let name = format!("{index:06}.leandisk");
    let written = maildir.join("tmp").join(&name);
    let mut file = File::create_new(&written)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(written, maildir.join("new").join(name))?;
    new.sync_all()
}

/// Whether all that arrived is there.
pub(super) fn check_served(scene: &Scene<'_>) -> Result<u64> {
    let new = scene.point.join("data/maildir/new");
    let mut count = 0;
    for (index, bytes) in arriving(scene) {
        let path = new.join(format!("{index:06}.leandisk"));
        let found = fs::read(&path).map_err(|error| Error::io("read", error).path(path.display()))?;
        if found != bytes {
            return Err(Error::mismatch("a message is not what was delivered").path(path.display()));
        }
        count += 1;
    }
    Ok(count + check_entries(scene.point, &scene.manifest.maildir, scene.monitor)?)
}

/// Messages are added to the mbox one by one, it is read from end to end, and packed: what was deleted goes.
pub(super) fn read_mail(scene: &Scene<'_>) -> Result<()> {
    let path = scene.point.join("data/mbox");
    let failed = |error| Error::io("use the mbox", error).path(path.display());
    let mut file = OpenOptions::new().append(true).open(&path).map_err(failed)?;
    for (index, bytes) in arriving(scene) {
        scene.check_cancel()?;
        let mut one = Vec::new();
        push(&mut one, bytes.len() as u64, ARRIVING_SEED + index);
        file.write_all(&one).and_then(|()| file.sync_data()).map_err(failed)?;
    }
    drop(file);
    let count = count_messages(&path).map_err(failed)?;
    if count != scene.manifest.mbox_messages + scene.sizes.arriving {
        return Err(Error::mismatch(format!("{count} messages in the mbox")).path(path.display()));
    }
    pack(&path).map_err(failed)
}

fn count_messages(path: &Path) -> std::io::Result<u64> {
    let mut count = 0;
    for line in BufReader::with_capacity(1 << 16, File::open(path)?).split(b'\n') {
        count += u64::from(line?.starts_with(b"From "));
    }
    Ok(count)
}

/// Leaves out one message in so many.
fn pack(path: &Path) -> std::io::Result<()> {
    let packed = path.with_extension("new");
    let mut out = BufWriter::with_capacity(1 << 16, File::create_new(&packed)?);
    let mut number = 0;
    for line in BufReader::with_capacity(1 << 16, File::open(path)?).split(b'\n') {
        let line = line?;
        number += u64::from(line.starts_with(b"From "));
        if !number.is_multiple_of(REMOVED_SHARE) {
            out.write_all(&line)?;
            out.write_all(b"\n")?;
        }
    }
    out.into_inner()?.sync_all()?;
    fs::rename(packed, path)
}

/// Whether the packed mbox is what it is to be, byte for byte.
pub(super) fn check_packed(scene: &Scene<'_>) -> Result<u64> {
    let path = scene.point.join("data/mbox");
    let failed = |error| Error::io("read", error).path(path.display());
    let (mut whole, _) = mbox_of(scene.sizes.mail_bytes, scene.seed);
    for (index, bytes) in arriving(scene) {
        push(&mut whole, bytes.len() as u64, ARRIVING_SEED + index);
    }
    let mut expected = xxhash_rust::xxh3::Xxh3::new();
    let (mut number, mut count) = (0u64, 0);
    let mut lines = whole.split(|byte| *byte == b'\n').peekable();
    while let Some(line) = lines.next() {
        // What is behind the last line feed is no line.
        if lines.peek().is_none() {
            break;
        }
        let is_first = line.starts_with(b"From ");
        number += u64::from(is_first);
        if !number.is_multiple_of(REMOVED_SHARE) {
            expected.update(line);
            expected.update(b"\n");
            count += u64::from(is_first);
        }
    }
    let (_, found) = read_whole(&path).map_err(failed)?;
    match found == expected.digest() {
        true => Ok(count),
        false => Err(Error::mismatch("the packed mbox is not what it is to be").path(path.display())),
    }
}
