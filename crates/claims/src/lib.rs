//! Who else needs the bytes of a disk, and what that forbids: one answer for every command.
//!
//! Facts come from the host's files ([`HostFile::users`], [`HostFile::name_count`]) and from the images beside the disk
//! ([`image::relatives`]). What a fact forbids is said in one place, [`Kind::forbids`].
//!
//! Invariants:
//! - nothing is changed, and nothing is held when this returns: who changes a disk takes its files for itself, and asks again;
//! - what cannot be told counts as a claim ([`Kind::Unknown`]).
//!
//! Absent on purpose: claims that lie within a volume (shadow copies, RAID members, a hibernated guest), which forbid changes of that
//! volume alone and are its file system's to know; a change that was interrupted, which is told before anything is opened.

use std::sync::Arc;

use block::{Error, Fingerprint, HostFile, Result};
use image::{Chain, Relation, Relative, Resolver};

/// What is to be done with a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Its contents are read, and must belong together.
    Read,
    /// Its contents or its layout change where they are.
    Change,
    /// Its name goes to a new file.
    Replace,
}

/// What somebody else has to do with a file of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Writes to it, or may at any moment.
    Writer,
    /// Reads it, or has it attached.
    Reader,
    /// It has further names, under which it would change as well.
    Links,
    /// An image stands on it.
    Child,
    /// It belongs to another image, as its data file or extent.
    Data,
    /// It is not known whether another image needs it.
    Unknown,
}

impl Kind {
    /// As in documents.
    pub fn word(self) -> &'static str {
        match self {
            Self::Writer => "writer",
            Self::Reader => "reader",
            Self::Links => "links",
            Self::Child => "child",
            Self::Data => "data",
            Self::Unknown => "unknown",
        }
    }

    /// The one place where it is decided. A file of a layer below is only read, whatever happens to the disk.
    fn forbids(self, act: Act, is_top: bool) -> bool {
        match (self, act) {
            (Self::Writer, _) => true,
            (_, Act::Read) => false,
            // The new file bears one name, and the others keep the old one.
            (Self::Links, Act::Replace) => false,
            (
                Self::Reader | Self::Links | Self::Child | Self::Data | Self::Unknown,
                Act::Change | Act::Replace,
            ) => is_top,
        }
    }
}

/// Somebody else who needs a file of the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// What they have to do with it.
    pub kind: Kind,
    /// The file. Untrusted text.
    pub file: String,
    /// In words that follow the file's name.
    pub text: String,
    /// What ends the claim.
    pub hint: String,
    /// Whether the file belongs to the disk's own image, not to a layer below.
    pub is_top: bool,
}

impl Claim {
    /// Whether nobody else may do this with the disk.
    pub fn forbids(&self, act: Act) -> bool {
        self.kind.forbids(act, self.is_top)
    }

    fn error(&self) -> Error {
        Error::refused(self.text.as_str()).path(&self.file).hint(&self.hint)
    }
}

/// Who else needs a disk.
#[derive(Clone, Default, Debug)]
pub struct Claims {
    all: Vec<Claim>,
}

impl Claims {
    /// On a disk: on the files of all its layers, as far as that matters.
    pub fn on_disk(chain: &Chain, resolver: &dyn Resolver) -> Self {
        let Self { mut all } = Self::of_users(chain);
        push_relatives(&mut all, &*chain.files()[0], image::relatives(chain, resolver));
        Self { all }
    }

    /// All that can forbid reading: who uses the files of the disk. The images beside it are not looked at.
    pub fn of_users(chain: &Chain) -> Self {
        let own_count = chain.links()[0].layer.files().len();
        let mut all = Vec::new();
        for (index, file) in chain.files().iter().enumerate() {
            push_users(&mut all, &**file, index < own_count);
        }
        Self { all }
    }

    /// On a file, whatever it holds.
    pub fn on_file(file: &Arc<dyn HostFile>, resolver: &dyn Resolver) -> Self {
        let mut all = Vec::new();
        push_users(&mut all, &**file, true);
        push_relatives(&mut all, &**file, image::relatives_of_file(file, resolver));
        Self { all }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Claim> {
        self.all.iter()
    }

    /// `Refused`, with the reason and what ends it, if a claim forbids the act.
    pub fn check(&self, act: Act) -> Result<()> {
        let forbidding = self.all.iter().find(|claim| claim.forbids(act));
        forbidding.map_or(Ok(()), |claim| Err(claim.error()))
    }
}

fn push_users(all: &mut Vec<Claim>, file: &dyn HostFile, is_top: bool) {
    let claim = |kind, text, hint| Claim { kind, file: file.name().to_owned(), text, hint, is_top };
    for user in file.users() {
        let kind = if user.writes { Kind::Writer } else { Kind::Reader };
        all.push(claim(kind, user.text, user.hint));
    }
    let name_count = file.name_count();
    if name_count > 1 {
        let text = format!("has {name_count} names (hard links): it would change under all of them");
        let hint =
            "if the others are backups or clones, give this one a copy of its own: 'cp' it, and use the copy";
        all.push(claim(Kind::Links, text, hint.into()));
    }
}

fn push_relatives(all: &mut Vec<Claim>, file: &dyn HostFile, relatives: Result<Vec<Relative>>) {
    let claim = |kind, text: String, hint: &str| Claim {
        kind,
        file: file.name().to_owned(),
        text,
        hint: hint.to_owned(),
        is_top: true,
    };
    let relatives = match relatives {
        Ok(relatives) => relatives,
        Err(error) => {
            let hint = error.hint_text().unwrap_or("look at the files beside it").to_owned();
            return all.push(claim(Kind::Unknown, error.message(), &hint));
        }
    };
    let names = |relation| named(&relatives, relation);
    if let Some(names) = names(Relation::Data) {
        let text = format!("belongs to {names}, as its data file or extent");
        all.push(claim(Kind::Data, text, "name that image instead"));
    }
    if let Some(names) = names(Relation::Parent) {
        let text = format!("is the parent of {names}, whose contents would change with it");
        let hint = "change it once its clones and snapshots are merged into it, or copied whole";
        all.push(claim(Kind::Child, text, hint));
    }
}

/// `'a'`, or `'a' and 2 more`.
fn named(relatives: &[Relative], relation: Relation) -> Option<String> {
    let mut names = relatives.iter().filter(|relative| relative.relation == relation).map(|it| &it.name);
    let first = names.next()?;
    Some(match names.count() {
        0 => format!("'{first}'"),
        others => format!("'{first}' and {others} more"),
    })
}

fn changed_meanwhile(chain: &Chain) -> Error {
    Error::refused("was changed by another program while it was looked at")
        .hint("see that nothing uses it, and try again")
        .path(chain.files()[0].name())
}

/// A disk as it was when its facts were read, to see whether anybody changed it since.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen(
    /// One for each file, in the chain's order; `None` for what has none.
    Vec<Option<Fingerprint>>,
);

impl Seen {
    /// Of all files of the disk, as they were when they were opened: before anything was believed of it.
    pub fn of(chain: &Chain) -> Self {
        Self(chain.files().iter().map(HostFile::fingerprint_when_opened).collect())
    }

    /// Whether it is as it was. The files are asked, not what their names mean by now.
    pub fn is_as_it_was(&self, chain: &Chain) -> Result<bool> {
        let now = chain.files().iter().map(HostFile::fingerprint).collect::<Result<Vec<_>>>()?;
        Ok(now == self.0)
    }

    /// `Refused` if it is not as it was: what was found of it is no ground for changing it.
    pub fn check_before_change(&self, chain: &Chain) -> Result<()> {
        if self.is_as_it_was(chain)? { Ok(()) } else { Err(changed_meanwhile(chain)) }
    }

    /// What was found of the disk. Where that failed, and the disk is not as it was, it failed because somebody changed the disk
    /// meanwhile: `Refused`, since nothing was done yet.
    pub fn explain<T>(&self, chain: &Chain, found: Result<T>) -> Result<T> {
        match found {
            Err(_) if matches!(self.is_as_it_was(chain), Ok(false)) => Err(changed_meanwhile(chain)),
            found => found,
        }
    }

    /// `Mismatch` if it is not as it was: what was read of it may fit together nowhere.
    pub fn check_after_reading(&self, chain: &Chain) -> Result<()> {
        if self.is_as_it_was(chain)? {
            return Ok(());
        }
        Err(Error::mismatch("the source changed while it was read")
            .hint("shut down what writes to it, or copy from a snapshot of it")
            .path(chain.files()[0].name()))
    }
}
