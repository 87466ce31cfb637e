//! The guest's agent: has the guest's file systems stand still for a moment.

use std::path::Path;
use std::time::Duration;

use block::Result;
use serde_json::json;

use crate::monitor::Monitor;
use crate::socket::Socket;

/// How long a guest may take to freeze or to thaw: it writes out all that waits before.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// Whether the guest's file systems are frozen at the moment whose contents are read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Freeze {
    /// If an agent is there and does it.
    #[default]
    Auto,
    /// Or nothing is read.
    Always,
    /// Not at all.
    Never,
}

/// Something that freezes and thaws a guest.
pub trait Agent {
    /// Returns when all file systems that can be are frozen; how many.
    fn freeze(&mut self) -> Result<u64>;

    /// Returns when none is. What is not frozen stays so.
    fn thaw(&mut self) -> Result<()>;
}

/// The agent at a socket of the host (`qemu-ga` behind a channel of virtio-serial).
#[derive(Debug)]
pub struct GuestAgent(Socket);

impl GuestAgent {
    /// Connects, and waits for it to answer: an agent that does not run does not.
    pub fn connect(path: &Path) -> Result<Self> {
        Ok(Self(Socket::connect_agent(path, ANSWER_MAX)?))
    }
}

impl Agent for GuestAgent {
    fn freeze(&mut self) -> Result<u64> {
        let frozen = (&mut self.0 as &mut dyn Monitor).ask("guest-fsfreeze-freeze", json!({}))?;
        Ok(frozen.as_u64().unwrap_or(0))
    }

    fn thaw(&mut self) -> Result<()> {
        (&mut self.0 as &mut dyn Monitor).ask("guest-fsfreeze-thaw", json!({}))?;
        Ok(())
    }
}
