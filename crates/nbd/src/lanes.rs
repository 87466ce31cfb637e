//! The connections to one export: several where the server allows them, made when they are needed, made anew when they are lost.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::{Error, Result};
use mutants::broken;
use tracing::{debug, warn};

use crate::connection::Connection;
use crate::handshake::{Facts, Wanted};
use crate::layout::export_flag;
use crate::lock;
use crate::reply::Failure;
use crate::transport::Socket;

/// Connects to a server, again each time that it is asked.
pub trait Dial: Send + Sync {
    /// A connected socket.
    fn dial(&self) -> Result<Socket>;
}

impl<F: Fn() -> Result<Socket> + Send + Sync> Dial for F {
    fn dial(&self) -> Result<Socket> {
        self()
    }
}

/// How much is borne of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Patience {
    /// The most connections at a time.
    pub lane_count_max: usize,
    /// How long a negotiation may take.
    pub negotiation_max: Duration,
    /// How long a server may be silent while a request is under way.
    pub silence_max: Duration,
    /// Before each attempt to connect again: the attempts are as many.
    pub pauses: Vec<Duration>,
    /// How often one request is sent again because its connection was lost.
    pub retry_count_max: usize,
}

impl Default for Patience {
    /// Two minutes of silence; a quarter of a minute for a server that is started again.
    fn default() -> Self {
        Self {
            lane_count_max: 4,
            negotiation_max: Duration::from_secs(30),
            silence_max: Duration::from_secs(120),
            pauses: [0, 100, 400, 1000, 2000, 4000, 8000].map(Duration::from_millis).into(),
            retry_count_max: 4,
        }
    }
}

/// How long a further connection may take until it is done without: some servers let one client in at a time, and have the others wait.
const FURTHER_NEGOTIATION_MAX: Duration = Duration::from_secs(3);

/// How much of the disk is read over one connection before the next one has its turn.
const STRETCH_BYTES: u64 = 16 << 20;

/// The connections to an export.
pub(crate) struct Lanes {
    name: String,
    dial: Box<dyn Dial>,
    wanted: Wanted,
    patience: Patience,
    facts: Facts,
    lanes: Vec<Mutex<Option<Arc<Connection>>>>,
    /// How many of them are used.
    used_count: AtomicUsize,
    next: AtomicUsize,
    /// Whether connections are made at any time: only of a mutant. Asked when it connects: a mutant is one on its own thread alone.
    connects_late: bool,
}

impl Lanes {
    /// Connects for the first time. No second attempt is made: who names a server expects it to be there.
    pub(crate) fn connect(
        name: String,
        dial: Box<dyn Dial>,
        wanted: Wanted,
        patience: Patience,
    ) -> Result<Self> {
        let first = connect(&*dial, &wanted, patience.negotiation_max, patience.silence_max)
            .map_err(|error| error.path(&name))?;
        let facts = first.facts().clone();
        let count = if facts.has(export_flag::CAN_MULTI_CONN) { patience.lane_count_max.max(1) } else { 1 };
        debug!(server = name, ?facts, "connected");
        let mut first = Some(Arc::new(first));
        Ok(Self {
            name,
            dial,
            wanted,
            patience,
            facts,
            lanes: (0..count).map(|_| Mutex::new(first.take())).collect(),
            used_count: AtomicUsize::new(count),
            next: AtomicUsize::new(0),
            connects_late: broken!(TargetConnectedLate),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Has a request done that can be done twice: where its connection is lost, it is done on another.
    pub(crate) fn run<T>(&self, request: impl FnMut(&Connection) -> Result<T, Failure>) -> Result<T> {
        self.run_on(self.next.fetch_add(1, Ordering::Relaxed), request)
    }

    /// The same of a request at this place of the disk. What lies together goes over one connection: many servers read ahead for each by itself.
    pub(crate) fn run_at<T>(
        &self,
        offset: u64,
        request: impl FnMut(&Connection) -> Result<T, Failure>,
    ) -> Result<T> {
        self.run_on(usize::try_from(offset / STRETCH_BYTES).unwrap_or(0), request)
    }

    fn run_on<T>(
        &self,
        index: usize,
        mut request: impl FnMut(&Connection) -> Result<T, Failure>,
    ) -> Result<T> {
        let mut retry_count = 0;
        loop {
            let (lane, connection) = self.connection(index)?;
            let error = match request(&connection) {
                Ok(done) => return Ok(done),
                Err(Failure::Answered(error) | Failure::Broken(error)) => return Err(error.path(&self.name)),
                Err(Failure::Lost(error)) => error,
            };
            self.forget(lane, &connection);
            if retry_count == self.patience.retry_count_max {
                return Err(error
                    .path(&self.name)
                    .hint("the connection to the server is lost again and again"));
            }
            retry_count += 1;
            warn!(server = self.name, %error, "the connection is lost");
        }
    }

    /// Makes every connection that will be used, so that [`Self::run_once`] makes none.
    pub(crate) fn connect_all(&self) -> Result<()> {
        if self.connects_late {
            return Ok(());
        }
        let mut lane = 0;
        while lane < self.used_count.load(Ordering::Relaxed) {
            self.connection(lane)?;
            lane += 1;
        }
        Ok(())
    }

    /// Has a request done on a connection that is there: none is made. One that is lost stays lost, and so is all that falls to its lane.
    pub(crate) fn run_once<T>(&self, request: impl FnOnce(&Connection) -> Result<T, Failure>) -> Result<T> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let lane = index % self.used_count.load(Ordering::Relaxed).max(1);
        let made = match self.connects_late {
            true => Some(self.connection(index)?.1),
            false => lock(&self.lanes[lane]).clone(),
        };
        let Some(connection) = made else {
            let lost = Error::io("the connection is lost", std::io::ErrorKind::NotConnected.into());
            return Err(lost.path(&self.name));
        };
        request(&connection).map_err(|failure| match failure {
            Failure::Answered(error) | Failure::Broken(error) | Failure::Lost(error) => {
                error.path(&self.name)
            }
        })
    }

    /// The connection of the lane that `index` falls to.
    fn connection(&self, index: usize) -> Result<(usize, Arc<Connection>)> {
        loop {
            let used_count = self.used_count.load(Ordering::Relaxed).max(1);
            let lane = index % used_count;
            // Others who need this one wait while it is made.
            let mut slot = lock(&self.lanes[lane]);
            if let Some(connection) = &*slot {
                return Ok((lane, connection.clone()));
            }
            let made = match lane {
                0 => self.connect_again()?,
                _ => match self.connect_further() {
                    Ok(made) => made,
                    Err(error) => {
                        debug!(server = self.name, %error, "a further connection is not to be had");
                        self.used_count.fetch_min(lane, Ordering::Relaxed);
                        continue;
                    }
                },
            };
            *slot = Some(Arc::new(made));
        }
    }

    fn connect_further(&self) -> Result<Connection> {
        let negotiation_max = self.patience.negotiation_max.min(FURTHER_NEGOTIATION_MAX);
        let made = connect(&*self.dial, &self.wanted, negotiation_max, self.patience.silence_max)?;
        self.check_same(&made)?;
        Ok(made)
    }

    fn connect_again(&self) -> Result<Connection> {
        let mut last = None;
        for pause in &self.patience.pauses {
            std::thread::sleep(*pause);
            let Patience { negotiation_max, silence_max, .. } = self.patience;
            match connect(&*self.dial, &self.wanted, negotiation_max, silence_max) {
                Ok(made) => {
                    self.check_same(&made)?;
                    debug!(server = self.name, "connected again");
                    return Ok(made);
                }
                Err(error) => last = Some(error),
            }
        }
        let error = last
            .unwrap_or_else(|| Error::io("the connection is lost", std::io::ErrorKind::NotConnected.into()));
        let text = format!("the connection to the NBD server is lost, and cannot be taken up again: {error}");
        let kind = error.io_source().map_or(std::io::ErrorKind::NotConnected, std::io::Error::kind);
        Err(Error::io(text, kind.into()).path(&self.name).hint("look whether the server still runs"))
    }

    /// A server that came back must have the disk that it had.
    fn check_same(&self, made: &Connection) -> Result<()> {
        let (was, is) = (&self.facts, made.facts());
        if (was.len_bytes, was.is_read_only()) == (is.len_bytes, is.is_read_only())
            && (was.minimum_bytes >= is.minimum_bytes && was.maximum_bytes <= is.maximum_bytes)
            && was.allocation_id.is_some() <= is.allocation_id.is_some()
            && was.is_extended <= is.is_extended
        {
            return Ok(());
        }
        let what = format!(
            "the connection was lost, and the server has another disk now: {} bytes, and it had {}",
            is.len_bytes, was.len_bytes
        );
        Err(Error::io(what, std::io::ErrorKind::InvalidData.into()).path(&self.name))
    }

    fn forget(&self, lane: usize, lost: &Arc<Connection>) {
        let mut slot = lock(&self.lanes[lane]);
        if slot.as_ref().is_some_and(|connection| Arc::ptr_eq(connection, lost)) {
            *slot = None;
        }
    }
}

fn connect(
    dial: &dyn Dial,
    wanted: &Wanted,
    negotiation_max: Duration,
    silence_max: Duration,
) -> Result<Connection> {
    Connection::new(dial.dial()?, wanted, negotiation_max, silence_max)
}
