//! The lines that a host and a guest say to each other, and nothing else: every line has a bound, and what is none of these is passed over.
//!
//! Lines, since a guest that moves to another host may leave one half said: the next one is whole again.

use std::fmt;

/// The version of the protocol.
pub const VERSION: u64 = 1;
/// The longest line, with its end.
pub const LINE_BYTES_MAX: usize = 200;
/// Disks that a guest can name: 0 to 62.
pub const DISKS_MAX: usize = 63;
const SERIAL_BYTES_MAX: usize = 64;

/// What a disk calls itself: up to 64 visible characters of ASCII. Others are replaced.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Serial(String);

impl Serial {
    /// Of any text.
    pub fn new(text: &str) -> Self {
        let visible = |c: char| if c.is_ascii_graphic() { c } else { '_' };
        Self(text.chars().take(SERIAL_BYTES_MAX).map(visible).collect())
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.0
    }

    fn parse(word: &str) -> Option<Self> {
        let is_serial = word.len() <= SERIAL_BYTES_MAX && word.bytes().all(|byte| byte.is_ascii_graphic());
        is_serial.then(|| Self(if word == "-" { String::new() } else { word.to_owned() }))
    }
}

/// Some of a guest's disks: bit N is disk N.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Disks(u64);

impl Disks {
    /// These bits; `None` if there are none, or more than there can be.
    pub const fn new(bits: u64) -> Option<Self> {
        if bits > 0 && bits < 1 << DISKS_MAX { Some(Self(bits)) } else { None }
    }

    /// The numbers of the disks.
    pub fn numbers(self) -> impl Iterator<Item = usize> {
        (0..DISKS_MAX).filter(move |disk| self.0 >> disk & 1 == 1)
    }
}

/// By how much work may make a disk's file on the host grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// It has all its storage.
    Thick,
    /// Storage is found for it as it is written, or it differs from another: at most so many bytes in all.
    Thin(u64),
}

/// What a guest says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromGuest {
    /// It is there, and knows this host, or none (0).
    Hello {
        /// Of the protocol.
        version: u64,
        /// The host's number.
        host: u64,
    },
    /// It has a disk.
    Disk {
        /// Its number with this guest.
        disk: usize,
        /// Its length.
        size_bytes: u64,
        /// What it calls itself.
        serial: Serial,
    },
    /// It would like to work, and does not now.
    Ask {
        /// The host that is asked.
        host: u64,
        /// Higher each time.
        seq: u64,
        /// Where.
        disks: Disks,
        /// How much there is to move.
        bytes: u64,
        /// What reading gains by it, in milliseconds for each GiB moved.
        gain: u64,
    },
    /// It has ended the work of a lease.
    Done {
        /// The host that gave it.
        host: u64,
        /// The ask's.
        seq: u64,
        /// How much it moved.
        bytes: u64,
    },
}

/// What a host says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromHost {
    /// It is there.
    Hello {
        /// Of the protocol.
        version: u64,
        /// A number that no other host has, nor this one once it begins anew; never 0.
        host: u64,
    },
    /// Which disk this is was not told here, or is forgotten: it is to be told.
    Tell {
        /// Its number with the guest.
        disk: usize,
    },
    /// What a disk is; `None` if it is not known here.
    Disk {
        /// Its number with the guest.
        disk: usize,
        /// By how much it may grow.
        growth: Option<Growth>,
    },
    /// Work may begin.
    Lease {
        /// The host's number.
        host: u64,
        /// The ask's.
        seq: u64,
        /// So much may be moved.
        bytes: u64,
        /// It ends so many milliseconds after the ask was sent.
        ms: u64,
    },
    /// Not now: ask again.
    Wait {
        /// The host's number.
        host: u64,
        /// The ask's.
        seq: u64,
        /// After so many milliseconds.
        ms: u64,
    },
}

impl fmt::Display for FromGuest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello { version, host } => writeln!(out, "guest {version} {host}"),
            Self::Disk { disk, size_bytes, serial } => {
                let serial = if serial.text().is_empty() { "-" } else { serial.text() };
                writeln!(out, "disk {disk} {size_bytes} {serial}")
            }
            Self::Ask { host, seq, disks, bytes, gain } => {
                writeln!(out, "ask {host} {seq} {} {bytes} {gain}", disks.0)
            }
            Self::Done { host, seq, bytes } => writeln!(out, "done {host} {seq} {bytes}"),
        }
    }
}

impl fmt::Display for FromHost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello { version, host } => writeln!(out, "host {version} {host}"),
            Self::Tell { disk } => writeln!(out, "tell {disk}"),
            Self::Disk { disk, growth: None } => writeln!(out, "disk {disk} unknown"),
            Self::Disk { disk, growth: Some(Growth::Thick) } => writeln!(out, "disk {disk} thick"),
            Self::Disk { disk, growth: Some(Growth::Thin(bytes)) } => {
                writeln!(out, "disk {disk} thin {bytes}")
            }
            Self::Lease { host, seq, bytes, ms } => writeln!(out, "lease {host} {seq} {bytes} {ms}"),
            Self::Wait { host, seq, ms } => writeln!(out, "wait {host} {seq} {ms}"),
        }
    }
}

/// Digits and nothing else, so that each number has few spellings.
fn number(word: &str) -> Option<u64> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?
}

fn disk_number(word: &str) -> Option<usize> {
    usize::try_from(number(word)?).ok().filter(|disk| *disk < DISKS_MAX)
}

/// Words of a line without its end. Those that follow are for later versions.
fn words(line: &[u8]) -> Option<Vec<&str>> {
    (line.len() < LINE_BYTES_MAX)
        .then(|| std::str::from_utf8(line).ok().map(|line| line.split(' ').collect()))?
}

impl FromGuest {
    /// A line without its end; `None` if it is none that is known.
    pub fn parse(line: &[u8]) -> Option<Self> {
        Some(match words(line)?.as_slice() {
            ["guest", version, host, ..] => Self::Hello { version: number(version)?, host: number(host)? },
            ["disk", disk, size, serial, ..] => Self::Disk {
                disk: disk_number(disk)?,
                size_bytes: number(size)?,
                serial: Serial::parse(serial)?,
            },
            ["ask", host, seq, disks, bytes, gain, ..] => Self::Ask {
                host: number(host)?,
                seq: number(seq)?,
                disks: Disks::new(number(disks)?)?,
                bytes: number(bytes)?,
                gain: number(gain)?,
            },
            ["done", host, seq, bytes, ..] => {
                Self::Done { host: number(host)?, seq: number(seq)?, bytes: number(bytes)? }
            }
            _ => return None,
        })
    }
}

impl FromHost {
    /// A line without its end; `None` if it is none that is known.
    pub fn parse(line: &[u8]) -> Option<Self> {
        Some(match words(line)?.as_slice() {
            ["host", version, host, ..] => {
                let host = number(host).filter(|host| *host > 0)?;
                Self::Hello { version: number(version)?, host }
            }
            ["tell", disk, ..] => Self::Tell { disk: disk_number(disk)? },
            ["disk", disk, "unknown", ..] => Self::Disk { disk: disk_number(disk)?, growth: None },
            ["disk", disk, "thick", ..] => {
                Self::Disk { disk: disk_number(disk)?, growth: Some(Growth::Thick) }
            }
            ["disk", disk, "thin", bytes, ..] => {
                Self::Disk { disk: disk_number(disk)?, growth: Some(Growth::Thin(number(bytes)?)) }
            }
            ["lease", host, seq, bytes, ms, ..] => {
                let [host, seq, bytes, ms] = [number(host)?, number(seq)?, number(bytes)?, number(ms)?];
                Self::Lease { host, seq, bytes, ms }
            }
            ["wait", host, seq, ms, ..] => {
                Self::Wait { host: number(host)?, seq: number(seq)?, ms: number(ms)? }
            }
            _ => return None,
        })
    }
}

/// Cuts what comes into lines. Never keeps more than one line; one that is too long is passed over.
#[derive(Clone, Debug, Default)]
pub struct LineReader {
    begun: Vec<u8>,
    is_too_long: bool,
}

impl LineReader {
    /// Hands over the lines that these bytes end, without their ends.
    pub fn feed(&mut self, bytes: &[u8], mut take: impl FnMut(&[u8])) {
        for byte in bytes {
            match byte {
                b'\n' => {
                    if !std::mem::take(&mut self.is_too_long) {
                        take(&self.begun);
                    }
                    self.begun.clear();
                }
                // Whoever ends lines as Windows does is understood.
                b'\r' => {}
                _ if self.begun.len() + 1 < LINE_BYTES_MAX => self.begun.push(*byte),
                _ => self.is_too_long = true,
            }
        }
    }

    /// Whatever was half said is forgotten.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(reader: &mut LineReader, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        reader.feed(bytes, |line| found.push(line.to_vec()));
        found
    }

    #[test]
    fn what_is_said_is_understood() {
        let serial = Serial::new("WD 1\u{e4}");
        assert_eq!(serial.text(), "WD_1_");
        let disks = Disks::new(5).unwrap();
        assert_eq!(disks.numbers().collect::<Vec<_>>(), [0, 2]);
        for said in [
            FromGuest::Hello { version: 1, host: 0 },
            FromGuest::Disk { disk: 62, size_bytes: u64::MAX, serial },
            FromGuest::Disk { disk: 0, size_bytes: 0, serial: Serial::default() },
            FromGuest::Ask {
                host: u64::MAX,
                seq: u64::MAX,
                disks: Disks::new((1 << 63) - 1).unwrap(),
                bytes: u64::MAX,
                gain: u64::MAX,
            },
            FromGuest::Done { host: 1, seq: 2, bytes: 3 },
        ] {
            let line = said.to_string();
            assert!(line.len() <= LINE_BYTES_MAX);
            assert_eq!(FromGuest::parse(line.trim_end().as_bytes()), Some(said));
        }
        for said in [
            FromHost::Hello { version: 1, host: 7 },
            FromHost::Tell { disk: 3 },
            FromHost::Disk { disk: 3, growth: None },
            FromHost::Disk { disk: 3, growth: Some(Growth::Thick) },
            FromHost::Disk { disk: 3, growth: Some(Growth::Thin(9)) },
            FromHost::Lease { host: 1, seq: 2, bytes: 3, ms: 4 },
            FromHost::Wait { host: 1, seq: 2, ms: 4 },
        ] {
            assert_eq!(FromHost::parse(said.to_string().trim_end().as_bytes()), Some(said));
        }
    }

    #[test]
    fn what_is_no_message_is_passed_over() {
        for bad in [
            "",
            "ask",
            "ask 1 2 0 4 5",
            "ask 1 2 -3 4 5",
            "ask 1 2 +3 4 5",
            "disk 63 1 -",
            "done 1 2 99999999999999999999",
            "guest 1",
        ] {
            assert_eq!(FromGuest::parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(FromHost::parse(b"host 1 0"), None);
        assert_eq!(FromHost::parse(b"\xff"), None);
        assert!(FromHost::parse(b"wait 1 2 3 more words").is_some(), "of a later version");
    }

    #[test]
    fn lines_are_bounded_and_found_again() {
        let mut reader = LineReader::default();
        assert_eq!(lines(&mut reader, b"one\r\ntw"), [b"one".to_vec()]);
        assert_eq!(lines(&mut reader, b"o\n\n"), [b"two".to_vec(), Vec::new()]);
        assert!(lines(&mut reader, &[b'x'; 100_000]).is_empty() && reader.begun.len() < LINE_BYTES_MAX);
        assert_eq!(lines(&mut reader, b"y\nthree\n"), [b"three".to_vec()]);
    }
}
