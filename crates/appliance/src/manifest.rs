//! The manifest of an OVF: a digest of each file, in lines `SHA256(name)= hex`.

use block::{Error, ReadAt, Result};
use extent::{Host, HostOffset};
use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha512};

use crate::corrupt::Corrupt;

/// What is read at a time.
const CHUNK_BYTES: u64 = 1 << 20;

/// A digest that a manifest can hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Algorithm {
    Sha1,
    Sha256,
    Sha512,
}

impl Algorithm {
    const ALL: [Self; 3] = [Self::Sha1, Self::Sha256, Self::Sha512];

    fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
            Self::Sha512 => "SHA512",
        }
    }

    fn hex_len(self) -> usize {
        match self {
            Self::Sha1 => 40,
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    name: String,
    algorithm: Algorithm,
    hex: String,
}

/// Digests of files by their names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    entries: Vec<Entry>,
}

impl Manifest {
    /// Reads its lines.
    pub fn parse(text: &str) -> Result<Self> {
        let mut entries: Vec<Entry> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let entry =
                entry(line).ok_or(Corrupt::ManifestLine { line: index + 1 }).map_err(Error::corrupt)?;
            entries.push(entry);
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        match entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
            Some(pair) => Err(Error::corrupt(Corrupt::ManifestTwice { name: pair[0].name.clone() })),
            None => Ok(Self { entries }),
        }
    }

    /// The files that it has digests of.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// `Corrupt` unless the file is what its line says. `advanced` is told how many bytes were read.
    pub fn check(
        &self,
        name: &str,
        file: &dyn ReadAt<Host>,
        advanced: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let found = self.entries.binary_search_by(|entry| entry.name.as_str().cmp(name));
        let missing = |_| Error::corrupt(Corrupt::NotInManifest { name: name.to_owned() });
        let Entry { algorithm, hex, .. } = &self.entries[found.map_err(missing)?];
        let found = match algorithm {
            Algorithm::Sha1 => digest::<Sha1>(file, advanced)?,
            Algorithm::Sha256 => digest::<Sha256>(file, advanced)?,
            Algorithm::Sha512 => digest::<Sha512>(file, advanced)?,
        };
        if found == *hex {
            return Ok(());
        }
        let (name, algorithm, expected) = (name.to_owned(), algorithm.name(), hex.clone());
        Err(Error::corrupt(Corrupt::Digest { name, algorithm, found, expected }))
    }
}

/// Digests of what a new archive holds.
#[derive(Clone, Copy, Debug)]
pub struct Digests;

impl Digests {
    /// The SHA-256 of a file, in hexadecimal digits.
    pub fn sha256(file: &dyn ReadAt<Host>, advanced: &mut dyn FnMut(u64) -> Result<()>) -> Result<String> {
        digest::<Sha256>(file, advanced)
    }

    /// The SHA-256 of bytes.
    pub fn sha256_of(bytes: &[u8]) -> String {
        hex(&Sha256::digest(bytes))
    }
}

fn digest<D: sha2::Digest>(
    file: &dyn ReadAt<Host>,
    advanced: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<String> {
    let mut digest = D::new();
    let len_bytes = file.len_bytes();
    let mut buffer = vec![0; usize::try_from(CHUNK_BYTES.min(len_bytes)).expect("a small chunk")];
    let mut at = 0;
    while at < len_bytes {
        let now = CHUNK_BYTES.min(len_bytes - at);
        let piece = &mut buffer[..usize::try_from(now).expect("a small chunk")];
        file.read_at(HostOffset::new(at), piece)?;
        digest.update(&*piece);
        at += now;
        advanced(now)?;
    }
    Ok(hex(&digest.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `SHA256(name)= hex`, with spaces as OpenSSL and ovftool put them.
fn entry(line: &str) -> Option<Entry> {
    let (head, digest) = line.trim().rsplit_once('=')?;
    let (algorithm, name) = head.trim_end().split_once('(')?;
    let name = name.strip_suffix(')')?;
    let wanted = algorithm.trim().replace('-', "");
    let algorithm = Algorithm::ALL.into_iter().find(|known| known.name().eq_ignore_ascii_case(&wanted))?;
    let hex = digest.trim().to_ascii_lowercase();
    let is_hex = hex.len() == algorithm.hex_len() && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    let name = name.strip_prefix("./").unwrap_or(name).to_owned();
    (is_hex && !name.is_empty()).then_some(Entry { name, algorithm, hex })
}

#[cfg(test)]
mod tests {
    use block::Memory;

    use super::*;

    #[test]
    fn lines_of_every_tool_are_read_and_checked() {
        // As sha1sum, sha256sum and sha512sum say of "abc".
        let text = "SHA1(a b.ovf)= a9993e364706816aba3e25717850c26c9cd0d89d\n\
            SHA256 (b)=BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD\r\n\n\
            sha512(c(1))= ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
        let manifest = Manifest::parse(text).unwrap();
        assert_eq!(manifest.names().collect::<Vec<_>>(), ["a b.ovf", "b", "c(1)"]);
        let (abc, abd) = (Memory::new(b"abc".into()), Memory::new(b"abd".into()));
        for name in ["a b.ovf", "b", "c(1)"] {
            let mut read = 0;
            let mut count = |bytes| {
                read += bytes;
                Ok(())
            };
            manifest.check(name, &abc, &mut count).unwrap();
            let error = manifest.check(name, &abd, &mut |_| Ok(())).unwrap_err();
            assert!(matches!(error.cause(), Some(Corrupt::Digest { .. })), "{error}");
            assert_eq!(read, 3);
        }
        let error = manifest.check("d", &abc, &mut |_| Ok(())).unwrap_err();
        assert!(matches!(error.cause(), Some(Corrupt::NotInManifest { .. })), "{error}");
    }

    #[test]
    fn lines_that_are_none_are_told() {
        let zeros = "0".repeat(40);
        for line in [
            "x",
            "SHA1(a)=",
            &format!("SHA1(a)= {zeros}0"),
            &format!("MD5(a)= {zeros}"),
            &format!("SHA1()= {zeros}"),
        ] {
            let error = Manifest::parse(&format!("\n{line}")).unwrap_err();
            assert!(error.to_string().contains("line 2"), "{line}: {error}");
        }
        let twice = format!("SHA1(a)= {zeros}\nSHA1(./a)= {zeros}");
        assert!(Manifest::parse(&twice).unwrap_err().to_string().contains("named twice"));
    }
}
