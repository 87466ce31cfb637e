//! The broker's side: opens what the reader may have, and nothing else.
//!
//! Invariants:
//! - a request is checked against [`Names`] before anything is opened for it;
//! - a descriptor that the reader sends is one that it could open itself: it is of a file or a block device, and was opened for
//!   reading or writing (`O_PATH`, which Landlock does not refuse, would be a name that comes as a descriptor);
//! - nothing that was opened stays open here, and nothing that was open before either, but for the socket to the reader, and where
//!   the command line names what is open (`/dev/fd/3`).

use std::fs::File;
use std::path::{Path, PathBuf};

use block::{Error, Result};
use extraction::{Below, IntoFolder, NewFile};
use journal::{Look, Names as _};
use nbd::Address;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{FileType, OFlags};
use serde::Serialize;
use serde_json::Value;

use super::names::{Names, beyond};
use super::target::Target;
use crate::device::DeviceTarget;
use crate::direct::open_again;
use crate::extracted::HostFolders;
use crate::grant::Grants;
use crate::journal_file::{HostNames, Looked, lasting_name};
use crate::new_file::Place;
use crate::raw_file::RawFile;
use crate::requests::{
    FoundUser, OfExtracted, OfTarget, READER, REQUEST_BYTES_MAX, Request, answer, receive_message,
    send_message,
};

/// Disks that grants are asked for: more than any command has.
const GRANTED_COUNT_MAX: usize = 1 << 16;
/// New files: more than any command makes.
const MADE_COUNT_MAX: usize = 64;

/// Answers until the reader is gone, and ends the process.
pub(super) fn run(socket: OwnedFd, reader: u32, names: Names) -> ! {
    let _ = READER.set(reader);
    // A broker that panics ends, and so does what the reader asks for.
    let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| serve(&socket, names)));
    // SAFETY: the call ends the process and touches no memory. What the parent registered for its own end is not run.
    #[allow(unsafe_code)]
    unsafe {
        libc::_exit(i32::from(served.is_err()))
    }
}

fn serve(socket: &OwnedFd, names: Names) {
    if !names.name_descriptors() {
        close_others(socket);
    }
    leave_to_reader();
    let mut broker = Broker {
        names,
        granted: Vec::new(),
        journals: Vec::new(),
        made: Vec::new(),
        target: None,
        extracted: None,
    };
    while let Ok(Some((request, files))) = receive_message(socket, REQUEST_BYTES_MAX) {
        let handled = serde_json::from_slice(&request)
            .map_err(|_| Error::invalid("a request that cannot be understood"))
            .and_then(|request| broker.handle(request, files.into_iter().next()));
        let sent = match &handled {
            Ok((told, files)) => {
                let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                send_message(socket, &answer(Ok(told.clone())), &files)
            }
            Err(error) => send_message(socket, &answer(Err(error)), &[]),
        };
        if sent.is_err() {
            break;
        }
    }
}

/// Closes what the program had open, or was given, behind standard input, output and error: others may wait for the end of it. Before
/// Linux 5.9 it stays open.
fn close_others(socket: &OwnedFd) {
    let socket = socket.as_raw_fd().unsigned_abs();
    for (first, last) in [(3, socket.saturating_sub(1)), (socket.saturating_add(1), u32::MAX)] {
        // SAFETY: the call takes its arguments by value and touches no memory. This process never returns to those who own what it closes.
        #[allow(unsafe_code)]
        unsafe {
            libc::syscall(libc::SYS_close_range, first, last, 0);
        }
    }
}

/// Signals, the terminal and the outputs are the reader's; its end is this process's, too.
fn leave_to_reader() {
    let ignored = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGXFSZ];
    for signal in ignored {
        // SAFETY: the call sets how a signal is taken, and is given no function to run.
        #[allow(unsafe_code)]
        unsafe {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    // SAFETY: both calls take arguments by value and touch no memory.
    #[allow(unsafe_code)]
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::setsid();
    }
    if let Ok(nothing) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&nothing);
        let _ = rustix::stdio::dup2_stderr(&nothing);
    }
}

type Handled = Result<(Value, Vec<OwnedFd>)>;

struct Broker {
    names: Names,
    /// Of which disk.
    granted: Vec<(PathBuf, Grants)>,
    /// Where links of journals' names lead.
    journals: Vec<PathBuf>,
    made: Vec<Made>,
    target: Option<Target>,
    extracted: Option<Below<HostFolders>>,
}

impl Broker {
    fn handle(&mut self, request: Request, file: Option<OwnedFd>) -> Handled {
        match request {
            Request::Open { path, past_cache } => self.open(path.as_ref(), past_cache),
            Request::OpenInput(path) => self.open_input(path.as_ref()),
            Request::Connect(address) => self.connect(address.as_ref()),
            Request::PastCache => with((), past_cache(&sent(file)?)?),
            Request::Grant(disk) => self.grant(disk.into()),
            Request::Referred { granted, from, name } => {
                let (_, granted) = self.granted.get(granted).ok_or_else(|| beyond(name.as_ref()))?;
                Ok(with_direct(granted.open(from.as_ref(), &name)?))
            }
            Request::NamesIn(folder) => self.names_in(folder.as_ref()),
            Request::Users(path) => self.users(path.as_ref(), sent(file)?),
            Request::Queue(path) => {
                self.names.check_read(path.as_ref())?;
                told(crate::queue::find_queue(path.as_ref()))
            }
            Request::LastingName(device) => told(lasting_name(device.as_ref())),
            Request::LookAtJournal(path) => self.look_at_journal(path.as_ref()),
            Request::PeekAtJournal(path) => self.peek_at_journal(path.as_ref()),
            Request::Create { path, replaces } => self.create(path.as_ref(), replaces),
            Request::Publish(number) => self.publish(number),
            Request::SyncPublished(number) => told(self.made(number, true)?.place.sync()?),
            Request::Discard(number) => told(self.made(number, false)?.place.remove()?),
            Request::Remove(path) => self.remove(path.as_ref()),
            Request::MakeFolder(path) => {
                self.names.check_target_folder(path.as_ref())?;
                told(crate::named::make_folder_here(path.as_ref())?)
            }
            Request::RemoveFolder(path) => {
                self.names.check_target_folder(path.as_ref())?;
                crate::named::remove_folder_here(path.as_ref());
                told(())
            }
            Request::Storage(path) => {
                self.names.check_placed(path.as_ref(), &self.granted)?;
                told(crate::users::storage_of(path.as_ref())?)
            }
            Request::OfTarget(request) => self.of_target(request, file),
            Request::OfExtracted(request) => self.of_extracted(request),
        }
    }

    fn of_target(&mut self, request: OfTarget, file: Option<OwnedFd>) -> Handled {
        match request {
            OfTarget::Begin { path, options } => {
                // One after another, where there is a folder for them.
                if self.target.is_some() && self.names.target_folder.is_none() {
                    return Err(beyond(path.as_ref()));
                }
                let target = Target::begin(&self.names, path.as_ref(), options)?;
                told(self.target.insert(target).names().place.tell())
            }
            OfTarget::Room(len_bytes) => told(self.target()?.names().check_room(len_bytes)?),
            OfTarget::Cloning => told(self.target()?.names().check_cloning(sent(file)?.as_fd())?),
            OfTarget::Open(name) => {
                let found = self.target()?.open(name)?.map(RawFile::into_fd).transpose()?;
                Ok((Value::Null, found.into_iter().collect()))
            }
            OfTarget::Create(name) => with((), self.target()?.create(name)?.into_fd()?),
            OfTarget::Remove(name) => told(self.target()?.remove(name)?),
            OfTarget::Rename { from, to } => told(self.target()?.rename(from, to)?),
            OfTarget::Sync => told(self.target()?.names().sync()?),
            OfTarget::Complete => told(self.target()?.complete(&sent(file)?.into())?),
            OfTarget::Device(path) => {
                self.names.check_target(path.as_ref(), true)?;
                with((), DeviceTarget::claim(path.as_ref())?)
            }
        }
    }

    fn of_extracted(&mut self, request: OfExtracted) -> Handled {
        if let OfExtracted::Begin { path, replaces } = request {
            self.names.check_extracted(path.as_ref(), replaces)?;
            if self.extracted.is_some() {
                return Err(beyond(path.as_ref()));
            }
            self.extracted = Some(Below::begin(HostFolders, path.as_ref(), replaces)?);
            return told(());
        }
        let none = || Error::refused("there is no folder to extract into yet");
        let below = self.extracted.as_mut().ok_or_else(none)?;
        match request {
            OfExtracted::Begin { .. } => Err(none()),
            OfExtracted::Folder(names) => told(below.make_folder(&names)?),
            OfExtracted::Create(names) => {
                let NewFile { number, file } = below.create(&names)?;
                with(number, file)
            }
            OfExtracted::Attribute { of, name, value } => {
                told(below.set_attribute(&of, &name, &digits(&value)?)?)
            }
            OfExtracted::Finish(number, kept) => told(below.finish_number(number, &kept)?),
            OfExtracted::Discard(number) => told(below.discard_number(number)?),
            OfExtracted::Symlink { names, target, kept } => told(below.symlink(&names, &target, &kept)?),
            OfExtracted::Link { first, names } => told(below.link(&first, &names)?),
            OfExtracted::Special { names, special, kept } => told(below.special(&names, special, &kept)?),
            OfExtracted::Settle(names, kept) => told(below.settle(&names, &kept)?),
            OfExtracted::Complete => told(below.complete()?),
        }
    }

    fn target(&mut self) -> Result<&mut Target> {
        self.target.as_mut().ok_or_else(|| Error::refused("there is no target yet"))
    }

    fn open(&self, path: &Path, past_cache: bool) -> Handled {
        if !self.target.as_ref().is_some_and(|target| target.is_made(path)) {
            self.names.check_read(path)?;
        }
        let file = RawFile::open(path, OFlags::RDONLY)?.into_fd()?;
        if past_cache { Ok(with_direct(file)) } else { with((), file) }
    }

    fn open_input(&self, path: &Path) -> Handled {
        self.names.check_read(path)?;
        with((), File::open(path).map_err(|error| Error::io("read", error).path(path.display()))?.into())
    }

    /// Where to is read from what the command line says, never from what the reader says.
    fn connect(&self, address: &Path) -> Handled {
        self.names.check_disk(address).or_else(|_| self.names.check_target(address, false))?;
        let parsed = Address::parse(address)?.ok_or_else(|| beyond(address))?;
        with((), crate::connect::open(&parsed.endpoint)?)
    }

    fn grant(&mut self, disk: PathBuf) -> Handled {
        self.names.check_disk(&disk)?;
        if let Some(number) = self.granted.iter().position(|(of, _)| *of == disk) {
            return told(number);
        }
        if self.granted.len() >= GRANTED_COUNT_MAX {
            return Err(beyond(&disk));
        }
        let granted = Grants::new(&disk, &self.names.allow_paths)?;
        self.granted.push((disk, granted));
        told(self.granted.len() - 1)
    }

    fn names_in(&self, folder: &Path) -> Handled {
        self.names.check_folder(folder, &self.granted)?;
        let names = crate::named::list(folder);
        told(names.map_err(|error| Error::io("list", error).path(folder.display()))?)
    }

    fn users(&self, path: &Path, file: OwnedFd) -> Handled {
        self.names.check_known(path, &self.granted)?;
        let found = crate::users::find(&RawFile::adopt(file, path)?);
        told(found.into_iter().map(FoundUser::from).collect::<Vec<_>>())
    }

    fn look_at_journal(&mut self, path: &Path) -> Handled {
        self.names.check_journal(path, &self.granted)?;
        let look = HostNames.look(path)?;
        if let Look::Link(to) = &look {
            self.journals.retain(|journal| journal != to);
            self.journals.push(to.clone());
        }
        told(Looked::from(&look))
    }

    fn peek_at_journal(&self, path: &Path) -> Handled {
        if !self.journals.iter().any(|journal| journal == path) {
            self.names.check_journal(path, &self.granted)?;
        }
        with((), HostNames.open_raw(path, OFlags::RDONLY)?.into_fd()?)
    }

    fn create(&mut self, path: &Path, replaces: bool) -> Handled {
        self.names.check_output(path, replaces)?;
        if self.made.len() >= MADE_COUNT_MAX {
            return Err(beyond(path));
        }
        let (place, file) = Place::find(path, replaces)?.create()?;
        let told = value((self.made.len(), place.tell()))?;
        self.made.push(Made { place, is_published: false });
        Ok((told, vec![file.into_fd()?]))
    }

    fn remove(&self, path: &Path) -> Handled {
        self.names.check_removed(path)?;
        told(crate::named::remove(path)?)
    }

    fn publish(&mut self, number: usize) -> Handled {
        let made = self.made(number, false)?;
        made.place.give_name()?;
        made.is_published = true;
        told(())
    }

    /// The new file of a number, which has its name already or has not.
    fn made(&mut self, number: usize, is_published: bool) -> Result<&mut Made> {
        let made = self.made.get_mut(number).filter(|made| made.is_published == is_published);
        made.ok_or_else(|| Error::refused("is no new file of this process"))
    }
}

/// A file that was made for the reader.
struct Made {
    place: Place,
    is_published: bool,
}

fn value(told: impl Serialize) -> Result<Value> {
    serde_json::to_value(told).map_err(|error| Error::io("answer", error.into()))
}

fn told(told: impl Serialize) -> Handled {
    Ok((value(told)?, Vec::new()))
}

fn with(told: impl Serialize, file: OwnedFd) -> Handled {
    Ok((value(told)?, vec![file]))
}

/// A file for reading, and past the page cache if that can be done.
fn with_direct(file: OwnedFd) -> (Value, Vec<OwnedFd>) {
    let direct = open_again(file.as_fd(), OFlags::RDONLY).ok();
    (Value::Null, [Some(file), direct].into_iter().flatten().collect())
}

/// Bytes of two digits each.
fn digits(text: &str) -> Result<Vec<u8>> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(high)? << 4 | digit(low)?));
    let bytes: Option<Vec<u8>> = bytes.collect();
    let wrong = || Error::invalid("a value that is no digits");
    bytes.filter(|_| rest.is_empty()).ok_or_else(wrong)
}

/// The descriptor that came with a request.
fn sent(file: Option<OwnedFd>) -> Result<OwnedFd> {
    let refused = || Error::refused("is no open file that can be asked about");
    let file = file.ok_or_else(refused)?;
    let (Ok(flags), Ok(stat)) = (rustix::fs::fcntl_getfl(&file), rustix::fs::fstat(&file)) else {
        return Err(refused());
    };
    let is_of_kind =
        [FileType::RegularFile, FileType::BlockDevice].contains(&FileType::from_raw_mode(stat.st_mode));
    if is_of_kind && !flags.contains(OFlags::PATH) { Ok(file) } else { Err(refused()) }
}

/// The same file past the page cache, with the access that the descriptor has. What may only be appended to stays so.
fn past_cache(file: &OwnedFd) -> Result<OwnedFd> {
    let failed = |error: rustix::io::Errno| Error::io("open past the page cache", error.into());
    let flags = rustix::fs::fcntl_getfl(file).map_err(failed)?;
    if flags.contains(OFlags::APPEND) {
        return Err(Error::refused("is open for appending"));
    }
    open_again(file.as_fd(), flags & OFlags::RWMODE).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use block::ErrorKind;
    use rustix::fs::{Mode, fcntl_getfl, open};

    use super::*;

    #[test]
    fn a_name_that_comes_as_a_descriptor_is_refused() {
        let dir = testkit::scratch();
        let path = dir.path().join("file");
        std::fs::write(&path, [0; 4096]).unwrap();
        let opened = |path: &Path, flags| open(path, flags, Mode::empty()).unwrap();
        for refused in [
            opened(&path, OFlags::PATH),
            opened(dir.path(), OFlags::RDONLY),
            UnixStream::pair().unwrap().0.into(),
        ] {
            assert_eq!(sent(Some(refused)).unwrap_err().kind(), ErrorKind::Refused);
        }
        assert_eq!(sent(None).unwrap_err().kind(), ErrorKind::Refused);
        assert!(sent(Some(opened(&path, OFlags::RDONLY))).is_ok());
    }

    #[test]
    fn a_second_descriptor_can_do_no_more_than_the_first() {
        // Not in memory, where there is no direct I/O.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [0; 4096]).unwrap();
        let opened = |flags| open(&path, flags, Mode::empty()).unwrap();
        for access in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR] {
            let again = past_cache(&opened(access)).unwrap();
            assert_eq!(fcntl_getfl(&again).unwrap() & OFlags::RWMODE, access);
        }
        let appending = opened(OFlags::WRONLY | OFlags::APPEND);
        assert_eq!(past_cache(&appending).unwrap_err().kind(), ErrorKind::Refused);
    }
}
