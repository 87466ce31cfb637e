//! A small listener: a few clients at a time, each by a deadline.

use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// How long a client may take for all it wants.
pub(super) const CLIENT_TIME_MAX: Duration = Duration::from_secs(10);
const CLIENT_COUNT_MAX: usize = 16;

pub(super) enum Listening {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// A client's stream, of either kind.
pub(super) trait Stream: Read + io::Write + Send {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()>;

    /// The file that the client passed along with what was read, if it passed one.
    fn take_descriptor(&mut self) -> Option<OwnedFd> {
        None
    }
}

/// A client on this host, which may pass a file.
struct Local {
    stream: UnixStream,
    passed: Option<OwnedFd>,
}

impl Read for Local {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut room);
        let received =
            recvmsg(&self.stream, &mut [IoSliceMut::new(buf)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                passed.for_each(|descriptor| self.passed = Some(descriptor));
            }
        }
        Ok(received.bytes)
    }
}

impl io::Write for Local {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut self.stream, buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Local {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        Stream::set_timeout(&self.stream, timeout)
    }

    fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.passed.take()
    }
}

macro_rules! stream {
    ($kind:ty) => {
        impl Stream for $kind {
            fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(timeout))?;
                self.set_write_timeout(Some(timeout))
            }
        }
    };
}

stream!(UnixStream);
stream!(std::net::TcpStream);

/// A listener at work. Stops when dropped.
pub(super) struct Endpoint {
    bell: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Has `answer` called with every client, in a thread of its own.
    pub(super) fn start(
        listening: Listening,
        answer: impl Fn(&mut dyn Stream) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        match &listening {
            Listening::Unix(listener) => listener.set_nonblocking(true)?,
            Listening::Tcp(listener) => listener.set_nonblocking(true)?,
        }
        let (bell, ring) = UnixStream::pair()?;
        let answer = Arc::new(answer);
        let thread = std::thread::Builder::new().name("stats".into()).spawn(move || {
            let clients = Arc::new(AtomicUsize::new(0));
            while wait(&listening, &ring) {
                if let Ok(stream) = accept(&listening) {
                    attend(stream, &clients, &answer);
                }
            }
        })?;
        Ok(Self { bell: Some(bell), thread: Some(thread) })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.bell = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for a client. `false` when there shall be none any more.
fn wait(listening: &Listening, ring: &UnixStream) -> bool {
    loop {
        let mut ready = [PollFd::new(listening, PollFlags::IN), PollFd::new(ring, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) => return ready[1].revents().is_empty(),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn accept(listening: &Listening) -> io::Result<Box<dyn Stream>> {
    let accepted: io::Result<Box<dyn Stream>> = match listening {
        Listening::Unix(listener) => listener.accept().and_then(|(stream, _)| {
            stream.set_nonblocking(false)?;
            Ok(Box::new(Local { stream, passed: None }) as Box<dyn Stream>)
        }),
        Listening::Tcp(listener) => listener.accept().and_then(|(stream, _)| {
            stream.set_nonblocking(false)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        }),
    };
    if accepted.is_err() {
        // Out of descriptors, most likely: no reason to spin.
        std::thread::sleep(Duration::from_millis(20));
    }
    accepted
}

fn attend(
    mut stream: Box<dyn Stream>,
    clients: &Arc<AtomicUsize>,
    answer: &Arc<impl Fn(&mut dyn Stream) + Send + Sync + 'static>,
) {
    if clients.load(SeqCst) >= CLIENT_COUNT_MAX || stream.set_timeout(CLIENT_TIME_MAX).is_err() {
        return;
    }
    clients.fetch_add(1, SeqCst);
    let (count, answer) = (clients.clone(), answer.clone());
    let thread = std::thread::Builder::new().name("stats client".into()).spawn(move || {
        answer(&mut *stream);
        count.fetch_sub(1, SeqCst);
    });
    if thread.is_err() {
        clients.fetch_sub(1, SeqCst);
    }
}

/// Reads up to and including `end`, or to the end of the stream; `None` if that takes more than `len_max` bytes or too
/// long.
pub(super) fn read_until(
    stream: &mut dyn Stream,
    end: &[u8],
    len_max: usize,
    deadline: Instant,
) -> Option<Vec<u8>> {
    let mut read = Vec::new();
    let mut piece = [0; 512];
    while !read.windows(end.len()).any(|window| window == end) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || read.len() > len_max {
            return None;
        }
        stream.set_timeout(left).ok()?;
        match Read::read(stream, &mut piece) {
            Ok(0) => break,
            Ok(len) => read.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(read)
}
