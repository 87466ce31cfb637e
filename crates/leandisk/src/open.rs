//! Opening a disk, and what every use case asks before it goes on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Error, ErrorKind, HostFile, LiveDisk, ReadAt, Result, TargetFile};
use claims::{Act, Claims};
use engine::{HINT_RECOVER, Unwritten};
use image::live::LiveOptions;
use image::{Chain, Format, NoFiles, Resolver};
use journal::Standing;
use mutants::broken;
use stack::Stack;

use crate::appliance::{Appliance, Inside};
use crate::machine::{Caching, Machine, Named, ThisHost};
use crate::remote::is_address;
use crate::stored::{self, Place, SnapshotName};

/// How a disk is opened.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OpenOptions {
    /// The format of its file; `None` to detect it.
    pub format: Option<Format>,
    /// Files that the image may refer to, and folders with such files, besides the image's own folder.
    pub allow_path: Vec<PathBuf>,
    /// What reports call the disk; `None` for its path.
    pub shown_as: Option<String>,
    /// Other disks, on which logical volumes and file systems of this one have parts. They are only read.
    pub with: Vec<PathBuf>,
    /// What is done with an NTFS volume whose log is open.
    pub ntfs_log: NtfsLog,
    /// The repository of a disk that is named as `SNAPSHOT:DISK`.
    pub repository: Option<Place>,
}

/// What is done with an NTFS volume whose log is open, because its guest was running.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum NtfsLog {
    /// It is whole.
    #[default]
    Refuse,
    /// What its log names counts as used, beside what its bitmap says.
    Join,
}

impl OpenOptions {
    /// What reports call the disk at `path`.
    pub(crate) fn shown(&self, path: &Path) -> String {
        self.shown_as.clone().unwrap_or_else(|| path.display().to_string())
    }

    /// What the path means if it names a disk of a snapshot. A repository has to be named, and nothing to be there of that name.
    pub(crate) fn snapshot<'a>(&'a self, path: &Path) -> Option<(&'a Place, SnapshotName)> {
        let place = self.repository.as_ref()?;
        let name = SnapshotName::parse(path.to_str()?)?;
        (!path.exists()).then_some((place, name))
    }
}

/// An open disk: its images, volumes and file systems. Nothing of it is ever written through this.
pub struct OpenDisk {
    pub(crate) stack: Stack,
}

impl OpenDisk {
    /// Opens the disk at `path`, and what it refers to as far as that is granted.
    /// `Refused` if a change of it in place was interrupted.
    pub fn open(path: &Path, options: &OpenOptions, caching: Caching) -> Result<Self> {
        Self::open_on(&ThisHost, path, options, caching)
    }

    /// The same on another machine than this host.
    pub fn open_on(
        machine: &dyn Machine,
        path: &Path,
        options: &OpenOptions,
        caching: Caching,
    ) -> Result<Self> {
        if let Some(appliance) = Appliance::find(machine, path, options, None)? {
            let disk = appliance.only_disk()?;
            let machine = Inside::new(machine, std::slice::from_ref(&appliance));
            let options = OpenOptions { format: disk.format, ..options.clone() };
            let open = Location { machine: &machine, path: &disk.path, options: &options }.open(caching)?;
            disk.check_capacity(open.stack.chain().len_bytes())?;
            return Ok(open);
        }
        Location { machine, path, options }.open(caching)
    }

    /// Its layers: the images, what is on them, and how they lie over each other.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// `Refused` if another program writes to the disk: what is read of it may not fit together. It was opened at `path`, by these
    /// options.
    pub fn check_unwritten(&self, path: &Path, options: &OpenOptions) -> Result<()> {
        check_claims(self.stack.chain(), &*Location::here(path, options).resolver()?, Act::Read)
    }

    /// Bytes on the host, of all files of the chain.
    pub fn allocated_bytes(&self) -> Result<u64> {
        self.stack.chain().files().iter().map(HostFile::allocated_bytes).sum()
    }
}

impl NtfsLog {
    /// The disk with what the logs of its volumes name, if that is to be joined in.
    pub(crate) fn joined(self, mut stack: Stack) -> Result<Stack> {
        if self == Self::Join {
            stack.join_logs()?;
        }
        Ok(stack)
    }
}

/// The error with the disk's name, if the disk is what is wrong and a deeper layer did not name the file.
pub fn name_disk(error: Error, disk: &Path) -> Error {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Unsupported => error.path(disk.display()),
        _ => error,
    }
}

/// A disk by its name, and how it is opened.
#[derive(Clone, Copy)]
pub(crate) struct Location<'a> {
    pub(crate) machine: &'a dyn Machine,
    pub(crate) path: &'a Path,
    pub(crate) options: &'a OpenOptions,
}

impl<'a> Location<'a> {
    /// On the machine that the program runs on.
    pub(crate) fn here(path: &'a Path, options: &'a OpenOptions) -> Self {
        Self { machine: &ThisHost, path, options }
    }

    /// Opens all layers. `Refused` if a change of one of its files in place was interrupted.
    pub(crate) fn open(self, caching: Caching) -> Result<OpenDisk> {
        let chain = self.open_chain_at_rest(caching)?;
        let others = self.options.with.iter().map(|path| self.open_other(path, caching));
        let stack = Stack::open_with(chain, others.collect::<Result<_>>()?)?;
        Ok(OpenDisk { stack: self.options.ntfs_log.joined(stack)? })
    }

    /// Opens the container of a disk that was named with this one. `Refused` if another program writes to it.
    pub(crate) fn open_other(self, path: &Path, caching: Caching) -> Result<Chain> {
        let options = OpenOptions { allow_path: self.options.allow_path.clone(), ..OpenOptions::default() };
        let other = Location { machine: self.machine, path, options: &options };
        let open = || {
            let chain = other.open_chain_at_rest(caching)?;
            check_claims(&chain, &*self.resolver_of_other(path)?, Act::Read)?;
            Ok(chain)
        };
        open().map_err(|error| name_disk(error, path))
    }

    /// What opens the files that a disk named with this one refers to.
    pub(crate) fn resolver_of_other(self, path: &Path) -> Result<Box<dyn Resolver>> {
        self.machine.resolver(path, &self.options.allow_path)
    }

    /// Opens the container alone. `Refused` if a change of one of its files in place was interrupted.
    pub(crate) fn open_chain_at_rest(self, caching: Caching) -> Result<Chain> {
        self.check_nothing_pending()?;
        let chain = self.open_chain(caching)?;
        // A parent may be what was changed.
        let Self { machine, options, .. } = self;
        for file in chain.files() {
            Location { machine, path: file.path(), options }.check_nothing_pending()?;
        }
        Ok(chain)
    }

    /// Opens the container alone, whatever became of it.
    pub(crate) fn open_chain(self, caching: Caching) -> Result<Chain> {
        if vm::Address::is_one(self.path) {
            let what = "a disk of a running guest is read by copy, info, analyze, map, ls, cat and extract, one at a time";
            return Err(Error::unsupported(what).path(self.path.display()));
        }
        if let Some((place, name)) = self.options.snapshot(self.path) {
            let file = stored::open_file(place, &name, self.path)?;
            return Chain::open(file, image::OpenOptions { format: Some(Format::Raw) }, &NoFiles);
        }
        let file = self.machine.open(self.path, caching)?;
        // What a guest could have written there does not make an export another format.
        let raw = is_address(self.path).then_some(Format::Raw);
        let format = self.options.format.or(raw);
        Chain::open(file, image::OpenOptions { format }, &*self.resolver()?)
    }

    /// `Unsupported` if the disk is behind a server: it is read, and written as the target of a copy, but not changed, nor served.
    pub(crate) fn check_on_host(self) -> Result<()> {
        if vm::Address::is_one(self.path) {
            let what = "is a disk of a running guest: this command changes or serves disks that nobody uses";
            return Err(Error::unsupported(what)
                .path(self.path.display())
                .hint("copy it first, or stop the guest"));
        }
        if !is_address(self.path) {
            return Ok(());
        }
        let what = "is an export of a server: this command works on files and block devices of this host";
        Err(Error::unsupported(what).path(self.path.display()).hint("name the file or block device itself"))
    }

    /// What opens the files that the disk refers to.
    pub(crate) fn resolver(self) -> Result<Box<dyn Resolver>> {
        if self.options.snapshot(self.path).is_some() {
            return Ok(Box::new(NoFiles));
        }
        self.machine.resolver(self.path, &self.options.allow_path)
    }

    /// `Refused` if a change in place was interrupted: until it is finished the disk's volumes may contradict themselves.
    pub(crate) fn check_nothing_pending(self) -> Result<()> {
        // Neither an export, a snapshot nor a stream has a name beside which a journal could be.
        let has_no_place = is_address(self.path)
            || self.options.snapshot(self.path).is_some()
            || self.path.as_os_str() == "-";
        if broken!(PendingNotLookedFor) || has_no_place {
            return Ok(());
        }
        let journal = self.machine.journal_path(self.path);
        match self.machine.journal_standing(self.path) {
            Standing::Absent => return Ok(()),
            Standing::Journal(_) => {}
            Standing::Other(why) => return Err(journal::in_the_way(&journal, &why)),
        }
        let (journal, path) = (journal.display(), self.path.display());
        Err(Error::refused(format!(
            "a change of this disk was interrupted, and '{journal}' says how to finish it"
        ))
        .hint(format!("leandisk recover '{path}'"))
        .path(path))
    }

    /// The error of a change, with what to do next if it left a journal: whatever it was that failed.
    pub(crate) fn or_to_recover(self, error: Error) -> Error {
        match self.machine.journal_standing(self.path) {
            Standing::Journal(_) => error.hint(HINT_RECOVER),
            Standing::Absent | Standing::Other(_) => error,
        }
    }

    /// Takes the disk into use as a change of it would, but that nothing is written: to see whether it can be.
    pub(crate) fn check_usable(self) -> Result<Box<dyn LiveDisk>> {
        let chain = self.open_chain(Caching::Metadata)?;
        let files = chain.links()[0].layer.files().iter();
        let files = files.map(|file| Arc::new(Unwritten::new(file.clone())) as Arc<dyn TargetFile>).collect();
        image::live::open(chain, files, LiveOptions::default())
    }

    /// `Refused` if the file, if there is one, must not be replaced by another.
    pub(crate) fn check_replaceable(self) -> Result<()> {
        // What is in the journal of a disk that is replaced would be held against the new one.
        self.check_nothing_pending()?;
        if self.machine.named(self.path) != Named::File {
            return Ok(());
        }
        let file = self.machine.open(self.path, Caching::Metadata)?;
        Claims::on_file(&file, &*self.resolver()?).check(Act::Replace)
    }
}

/// `Refused` if somebody else needs the disk in a way that forbids the act.
pub(crate) fn check_claims(chain: &Chain, resolver: &dyn Resolver, act: Act) -> Result<()> {
    let claims = match act {
        Act::Read => Claims::of_users(chain),
        Act::Change | Act::Replace => Claims::on_disk(chain, resolver),
    };
    claims.check(act)
}

/// What is wrong if a volume is not there any more after a change of it.
pub(crate) fn lost() -> Error {
    Error::mismatch("a volume is no longer recognised")
}
