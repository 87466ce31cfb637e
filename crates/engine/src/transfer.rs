//! The life of a target in the making: under which names it lies, what is kept of it when its copy ends early, and when a later
//! copy may go on with that.
//!
//! Invariants:
//! - the target's own name never means a part of a copy;
//! - a checkpoint names only what is on stable storage: the contents are flushed, then the checkpoint is written under another name,
//!   flushed, and renamed;
//! - a checkpoint is gone for good (the folder flushed) before a new partial target is made: a kill or a power cut leaves no old
//!   checkpoint beside a new partial target;
//! - a partial target has its name for good (the folder flushed) before its first checkpoint is stored: a power cut brings no older
//!   partial target back beside it;
//! - a checkpoint says which file it is of, and of which source: anything else starts over. What is in doubt starts over, too.
//!
//! The order is explored in `crash`, with kills and power cuts at every step of two attempts before the last.

use std::sync::{Mutex, PoisonError};

use block::{FolderFile, Result, TargetFolder, TargetName};
use extent::HostOffset;
use mutants::broken;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::checkpoint::Checkpoint;
use crate::monitor::JobMonitor;

/// The version of the stored form. Another version is not gone on with.
const VERSION: u32 = 3;

/// What a stored checkpoint begins with: a digest of the rest as hexadecimal digits, and the end of the line.
const HEAD_LEN: usize = 33;

/// The longest checkpoint that is read: that of 64 TiB with digests has half of it.
const STORED_BYTES_MAX: u64 = 1 << 30;

/// What a copy that goes on must agree on with the one that was interrupted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobIdentity {
    /// The source as it was, so that it reads differently whenever the source may have changed. `None` if that cannot be told:
    /// then nothing is kept.
    pub source: Option<String>,
    /// What is read of it, and all that shapes the target.
    pub how: String,
}

/// What an earlier copy to the same target left.
#[derive(Debug)]
pub enum Left {
    /// Nothing.
    Nothing,
    /// A partial target that a copy with this identity can go on with.
    Usable(Box<Checkpoint>),
    /// Something that it cannot go on with, and why.
    Useless(&'static str),
}

impl Left {
    /// For the log.
    fn word(&self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Usable(_) => "a partial target to go on with",
            Self::Useless(why) => why,
        }
    }
}

/// The stored form of a checkpoint.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    job: JobIdentity,
    /// Which file it is of.
    partial: String,
    checkpoint: Checkpoint,
}

impl Stored {
    fn to_bytes(&self) -> Vec<u8> {
        let text = serde_json::to_vec(self).expect("plain data becomes JSON");
        [format!("{:032x}\n", xxh3_128(&text)).as_bytes(), &text].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, text) = bytes.split_at_checked(HEAD_LEN)?;
        let is_whole = head == format!("{:032x}\n", xxh3_128(text)).as_bytes();
        serde_json::from_slice(text).ok().filter(|_| is_whole)
    }
}

/// A copy's target until it bears its name.
pub struct Transfer<'a> {
    folder: &'a dyn TargetFolder,
    job: JobIdentity,
    partial: Box<dyn FolderFile + 'a>,
    /// The partial target was made here: its name may not be on stable storage yet.
    has_new_name: bool,
    /// What is said of the last checkpoint that was stored.
    kept: Mutex<Option<KeptCopy>>,
}

/// What a copy that ended early keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptCopy {
    /// Bytes of the virtual disk that need not be read or cloned again.
    pub done_bytes: u64,
}

impl<'a> Transfer<'a> {
    /// Goes on with what an earlier copy left, if `resumes` says so and that can be; else removes that and makes an empty
    /// partial target. Answers what was found; the copy goes on with it if `resumes` and it is [`Left::Usable`]. `Refused` if
    /// another process is at the same target.
    pub fn begin(folder: &'a dyn TargetFolder, job: JobIdentity, resumes: bool) -> Result<(Self, Left)> {
        let partial = folder.open(TargetName::Partial)?;
        let left = examine(folder, &job, partial.as_deref());
        tracing::debug!(resumes, found = left.word(), "looked for what an earlier copy left");
        match (partial, &left) {
            (Some(partial), Left::Usable(checkpoint)) if resumes => {
                folder.remove(TargetName::Draft)?;
                let kept = KeptCopy { done_bytes: checkpoint.done_bytes() };
                Ok((Self { folder, job, partial, has_new_name: false, kept: Mutex::new(Some(kept)) }, left))
            }
            (partial, _) => {
                let partial = start_over(folder, partial)?;
                let has_new_name = !broken!(NewNameNotFlushed) && !broken!(CheckpointOfAnyFile);
                Ok((Self { folder, job, partial, has_new_name, kept: Mutex::new(None) }, left))
            }
        }
    }

    /// The file that is written.
    pub fn partial(&self) -> &(dyn FolderFile + 'a) {
        &*self.partial
    }

    /// What is kept by now, should the copy end.
    pub fn kept(&self) -> Option<KeptCopy> {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `monitor` watch the copy, and its checkpoints stored here.
    pub fn watched_by<'m>(&'m self, monitor: &'m dyn JobMonitor) -> impl JobMonitor + 'm {
        Watched { transfer: self, monitor }
    }

    /// Stores a checkpoint, so that a kill or a power cut leaves this one or the last.
    fn store(&self, checkpoint: &Checkpoint) -> Result<()> {
        let identity = self.partial.identity()?;
        let (Some(_), Some(partial)) = (&self.job.source, identity) else { return Ok(()) };
        if self.kept().is_none() {
            // What the file is told by must not go with a power cut either, nor its name: where numbers tell files apart and are
            // used again, the checkpoint would be believed beside the partial target that was there before.
            self.partial.flush_all()?;
            if self.has_new_name {
                self.folder.sync()?;
            }
        }
        let stored =
            Stored { version: VERSION, job: self.job.clone(), partial, checkpoint: checkpoint.clone() };
        let result = self.replace_checkpoint(&stored.to_bytes());
        if result.is_err() {
            let _ = self.folder.remove(TargetName::Draft);
        }
        result?;
        let kept = KeptCopy { done_bytes: checkpoint.done_bytes() };
        tracing::debug!(kept.done_bytes, end_bytes = checkpoint.end_bytes, "checkpoint stored");
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        Ok(())
    }

    fn replace_checkpoint(&self, bytes: &[u8]) -> Result<()> {
        let draft = self.folder.create(TargetName::Draft)?;
        draft.write_at(HostOffset::ZERO, bytes)?;
        draft.flush_all()?;
        self.folder.rename(TargetName::Draft, TargetName::Checkpoint)?;
        self.folder.sync()
    }

    /// Gives the target its name, after all of it is on stable storage. A failure before that removes what there is.
    pub fn publish(self) -> Result<()> {
        if let Err(error) = self.give_name() {
            self.discard();
            return Err(error);
        }
        if broken!(PublishedNameNotFlushed) { Ok(()) } else { self.folder.sync() }
    }

    /// The checkpoint goes first, and for good: a power cut may leave a file system with the file under both names, and nobody must
    /// go on writing to a whole target.
    fn give_name(&self) -> Result<()> {
        self.partial.complete()?;
        tracing::debug!("the target is complete, and gets its name");
        if self.kept().is_some() && !broken!(CheckpointOutlivesPublishing) {
            forget(self.folder)?;
        }
        self.folder.rename(TargetName::Partial, TargetName::Target)
    }

    /// Ends a copy that failed, and keeps what a later one can go on with, if there is something and `keeps` says so; else nothing
    /// is left. Answers what is kept.
    pub fn give_up(self, keeps: bool) -> Option<KeptCopy> {
        let kept = self.kept().filter(|_| keeps);
        if kept.is_none() {
            self.discard();
        }
        kept
    }

    /// Removes what there is. The copy failed for a reason of its own, which is what is told; what cannot be removed is found by the
    /// next one.
    fn discard(self) {
        for name in [TargetName::Draft, TargetName::Checkpoint, TargetName::Partial] {
            let _ = self.folder.remove(name);
        }
    }
}

/// What an earlier copy to the same target left, without any change. `Refused` if another process is at it.
pub fn find_left(folder: &dyn TargetFolder, job: &JobIdentity) -> Result<Left> {
    let partial = folder.open(TargetName::Partial)?;
    Ok(examine(folder, job, partial.as_deref()))
}

/// Whether a copy can go on with this partial target.
fn examine(folder: &dyn TargetFolder, job: &JobIdentity, partial: Option<&dyn FolderFile>) -> Left {
    let Some(partial) = partial else { return Left::Nothing };
    if job.source.is_none() {
        return Left::Useless(
            "whether the source changed since cannot be told: it is a block device, or in use",
        );
    }
    let Some(stored) = stored_checkpoint(folder) else {
        return Left::Useless("how far the interrupted copy was is not known");
    };
    let Stored { version, job: of, partial: named, checkpoint } = stored;
    let is_same_source = of.source == job.source || broken!(CheckpointOfAnySource);
    let is_same_file = partial.identity().is_ok_and(|identity| identity.as_deref() == Some(&*named))
        && partial.len_bytes() >= checkpoint.end_bytes;
    let is_same_file = is_same_file || broken!(CheckpointOfAnyFile) || broken!(OldCheckpointStays);
    match () {
        () if version != VERSION => Left::Useless("another version of Leandisk was interrupted"),
        () if !is_same_file => Left::Useless("what is stored of an interrupted copy is of another file"),
        () if !is_same_source => Left::Useless("the source changed since the copy was interrupted"),
        () if of.how != job.how => {
            Left::Useless("the interrupted copy was another one, or had other options")
        }
        () => Left::Usable(Box::new(checkpoint)),
    }
}

/// The checkpoint as it is stored; `None` if there is none, or if it cannot be read or trusted.
fn stored_checkpoint(folder: &dyn TargetFolder) -> Option<Stored> {
    let file = folder.open(TargetName::Checkpoint).ok()??;
    file.identity().ok()??;
    let len_bytes = file.len_bytes();
    if len_bytes > STORED_BYTES_MAX {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(len_bytes).ok()?];
    file.read_at(HostOffset::ZERO, &mut bytes).ok()?;
    Stored::from_bytes(&bytes)
}

/// Removes what is left of an earlier copy, and makes an empty partial target. `left` is held until that is there, so that no two
/// processes do so at once.
fn start_over<'a>(
    folder: &'a dyn TargetFolder,
    left: Option<Box<dyn FolderFile + 'a>>,
) -> Result<Box<dyn FolderFile + 'a>> {
    let old_stays = broken!(OldCheckpointStays);
    if !old_stays {
        forget(folder)?;
    }
    if left.is_some() {
        folder.remove(TargetName::Partial)?;
    }
    let partial = folder.create(TargetName::Partial)?;
    if old_stays {
        forget(folder)?;
    }
    Ok(partial)
}

/// Makes sure that there is no checkpoint, nor will be after a power cut: also if an earlier attempt was killed between removing
/// it and the flush.
fn forget(folder: &dyn TargetFolder) -> Result<()> {
    folder.remove(TargetName::Draft)?;
    folder.remove(TargetName::Checkpoint)?;
    if broken!(RemovedNamesNotFlushed) { Ok(()) } else { folder.sync() }
}

/// A monitor and a place for checkpoints.
struct Watched<'a> {
    transfer: &'a Transfer<'a>,
    monitor: &'a dyn JobMonitor,
}

impl JobMonitor for Watched<'_> {
    fn resumed(&self, read_bytes: u64, written_bytes: u64) {
        self.monitor.resumed(read_bytes, written_bytes);
    }

    fn advanced(&self, read_bytes: u64, written_bytes: u64) {
        self.monitor.advanced(read_bytes, written_bytes);
    }

    fn is_cancelled(&self) -> bool {
        self.monitor.is_cancelled()
    }

    fn checkpoint(&self, checkpoint: &Checkpoint) -> Result<()> {
        self.transfer.store(checkpoint)
    }
}
