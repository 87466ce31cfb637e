//! What a machine says on its serial console, and whether that is what was waited for.
//!
//! Invariant: whatever the guest says, what is kept of it is bounded.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use block::{Error, Result};

/// Of what was said, so much is kept.
const KEPT_BYTES: usize = 64 << 10;
/// Of that, so much is told.
const TAIL_BYTES: usize = 4 << 10;
/// How a line ends on which `agetty` and its like wait for a name.
const PROMPT: &str = "login:";

/// What came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    /// What was waited for.
    Expected,
    /// Something else, or nothing within the time.
    Nothing,
    /// Nothing will come any more.
    Closed,
}

/// A serial console.
pub(super) struct Console {
    stream: UnixStream,
    expect: Option<String>,
    kept: Vec<u8>,
}

impl Console {
    /// At the other end of `stream`. `None` waits for a login prompt.
    pub(super) fn new(stream: UnixStream, expect: Option<String>) -> Self {
        Self { stream, expect, kept: Vec::new() }
    }

    /// What is waited for.
    pub(super) fn expected(&self) -> &str {
        self.expect.as_deref().unwrap_or(PROMPT)
    }

    /// Waits for what is said, `time_max` at the most.
    pub(super) fn listen(&mut self, time_max: Duration) -> Result<Heard> {
        let failed = |error| Error::io("listen to the serial console", error);
        self.stream.set_read_timeout(Some(time_max)).map_err(failed)?;
        let mut buf = [0; 4096];
        match self.stream.read(&mut buf) {
            Ok(0) => Ok(Heard::Closed),
            Ok(len) => {
                self.keep(&buf[..len]);
                Ok(if self.has_come() { Heard::Expected } else { Heard::Nothing })
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(Heard::Nothing),
                ErrorKind::ConnectionReset => Ok(Heard::Closed),
                _ => Err(failed(error)),
            },
        }
    }

    fn keep(&mut self, said: &[u8]) {
        self.kept.extend_from_slice(said);
        let surplus = self.kept.len().saturating_sub(KEPT_BYTES);
        self.kept.drain(..surplus);
    }

    fn has_come(&self) -> bool {
        match &self.expect {
            Some(text) => self.kept.windows(text.len()).any(|part| part == text.as_bytes()),
            None => {
                let last = self.kept.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
                last.trim_ascii_end().ends_with(PROMPT.as_bytes())
            }
        }
    }

    /// The end of what was said. What is no text is replaced.
    pub(super) fn tail(&self) -> String {
        let from = self.kept.len().saturating_sub(TAIL_BYTES);
        String::from_utf8_lossy(&self.kept[from..]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn console(expect: Option<&str>) -> (UnixStream, Console) {
        let (guest, stream) = UnixStream::pair().unwrap();
        (guest, Console::new(stream, expect.map(Into::into)))
    }

    fn hear(guest: &mut UnixStream, console: &mut Console, said: &[u8]) -> Heard {
        guest.write_all(said).unwrap();
        console.listen(Duration::from_secs(5)).unwrap()
    }

    #[test]
    fn a_login_prompt_is_the_end_of_the_last_line() {
        let (mut guest, mut console) = console(None);
        for said in ["systemd-logind started\r\n", "Last login: Monday\r\n", "\r\nvm log"] {
            assert_eq!(hear(&mut guest, &mut console, said.as_bytes()), Heard::Nothing, "{said}");
        }
        assert_eq!(hear(&mut guest, &mut console, b"in: "), Heard::Expected);
        assert_eq!(console.expected(), "login:");
        drop(guest);
        assert_eq!(console.listen(Duration::from_secs(5)).unwrap(), Heard::Closed);
    }

    #[test]
    fn a_text_is_found_across_pieces_and_what_is_kept_is_bounded() {
        let (mut guest, mut console) = console(Some("R\u{e9}ady"));
        assert_eq!(hear(&mut guest, &mut console, b"xxR\xc3"), Heard::Nothing);
        assert_eq!(hear(&mut guest, &mut console, b"\xa9ady\xff"), Heard::Expected);
        assert!(console.tail().ends_with("R\u{e9}ady\u{fffd}"));
        (0..100).for_each(|_| console.keep(&[b'z'; 4096]));
        assert_eq!((console.kept.len(), console.tail().len()), (KEPT_BYTES, TAIL_BYTES));
        assert_eq!(console.listen(Duration::from_millis(1)).unwrap(), Heard::Nothing);
    }
}
