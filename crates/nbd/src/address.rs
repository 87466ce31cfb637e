//! Addresses of exports, in the form that libnbd, QEMU and nbdkit share.
//!
//! Source: `doc/uri.md` of <https://github.com/NetworkBlockDevice/nbd>.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use block::{Error, Result};

/// The port that is meant where none is said (doc/uri.md).
const PORT: u16 = 10809;
/// The longest name of an export (doc/proto.md, "Values").
const NAME_BYTES_MAX: usize = 4096;

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// A host by its name or number, and a port.
    Tcp(String, u16),
}

/// What is asked of TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsAddress {
    /// A folder with `ca-cert.pem`, and `client-cert.pem` with `client-key.pem` where the server wants them. Without it, the
    /// authorities that the system trusts.
    pub certificates: Option<PathBuf>,
    /// Whether the server has to prove who it is.
    pub verifies_peer: bool,
    /// The name that the server's certificate must be for.
    pub host: String,
}

/// An export of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// Where the server listens.
    pub endpoint: Endpoint,
    /// The export's name; the empty one is the server's own choice.
    pub export: String,
    /// `None` in the clear.
    pub tls: Option<TlsAddress>,
}

impl Address {
    /// Whether a name is meant as an address, well formed or not: no path begins so.
    pub fn is_meant(name: &Path) -> bool {
        let schemes = ["nbd", "nbds", "nbd+unix", "nbds+unix", "nbd+vsock", "nbds+vsock", "nbd+ssh"];
        name.to_str()
            .and_then(|text| text.split_once("://"))
            .is_some_and(|(scheme, _)| schemes.contains(&scheme))
    }

    /// The address that `name` is; `None` if it is meant as a path. `Invalid` if it is malformed, `Unsupported` for what is beyond Leandisk.
    pub fn parse(name: &Path) -> Result<Option<Self>> {
        if !Self::is_meant(name) {
            return Ok(None);
        }
        let text = name.to_string_lossy();
        parse(&text).map(Some).map_err(|error| error.path(&text))
    }

    /// The files that TLS reads, whether they are there or not.
    pub fn tls_files(&self) -> Vec<PathBuf> {
        let Some(tls) = &self.tls else { return Vec::new() };
        match &tls.certificates {
            Some(folder) => {
                ["ca-cert.pem", "client-cert.pem", "client-key.pem"].map(|name| folder.join(name)).into()
            }
            None => vec![SYSTEM_AUTHORITIES.into()],
        }
    }
}

/// Where distributions keep the authorities that the system trusts, Debian's and those that follow it.
pub const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

fn parse(text: &str) -> Result<Address> {
    let malformed = |what: &str| Error::invalid(format!("the address of an export: {what}"));
    let (scheme, rest) = text.split_once("://").ok_or_else(|| malformed("no scheme"))?;
    let (has_tls, is_unix) = match scheme {
        "nbd" => (false, false),
        "nbds" => (true, false),
        "nbd+unix" => (false, true),
        "nbds+unix" => (true, true),
        other => {
            return Err(Error::unsupported(format!("NBD over '{other}://'"))
                .hint("nbd://, nbds://, nbd+unix:// and nbds+unix:// are known"));
        }
    };
    if rest.contains('#') {
        return Err(malformed("it has a fragment ('#'); write %23 if it is part of a name"));
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let export = decode(path).ok_or_else(|| malformed("the export's name has a wrong '%'"))?;
    if export.len() > NAME_BYTES_MAX {
        return Err(malformed("the export's name is too long"));
    }
    let query = Query::parse(query)?;
    if query.psk.is_some() {
        return Err(Error::unsupported("TLS with keys shared beforehand (tls-psk-file)")
            .hint("use certificates: tls-certificates=DIR"));
    }
    let (_user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (endpoint, host) = if is_unix {
        if !host.is_empty() {
            return Err(malformed(
                "a Unix socket has no host: nbd+unix:///NAME?socket=PATH has three slashes",
            ));
        }
        let socket = query.socket.ok_or_else(|| malformed("no socket: nbd+unix:///NAME?socket=PATH"))?;
        (Endpoint::Unix(socket.into()), "localhost".to_owned())
    } else {
        if query.socket.is_some() {
            return Err(malformed("a socket is for nbd+unix://"));
        }
        let (host, port) = host_and_port(host).ok_or_else(|| malformed("no host, or a wrong port"))?;
        (Endpoint::Tcp(host.clone(), port), host)
    };
    let tls = has_tls.then(|| TlsAddress {
        certificates: query.certificates.map(PathBuf::from),
        verifies_peer: query.verifies_peer,
        host: query.host.unwrap_or(host),
    });
    Ok(Address { endpoint, export, tls })
}

/// What follows the question mark.
struct Query {
    socket: Option<String>,
    certificates: Option<String>,
    psk: Option<String>,
    host: Option<String>,
    verifies_peer: bool,
}

impl Query {
    fn parse(text: &str) -> Result<Self> {
        let mut query = Self { socket: None, certificates: None, psk: None, host: None, verifies_peer: true };
        for pair in text.split(['&', ';']).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value)
                .filter(|value| !value.is_empty())
                .ok_or_else(|| Error::invalid(format!("the address of an export: '{key}' has no value")))?;
            match key {
                "socket" => query.socket = Some(value),
                "tls-certificates" => query.certificates = Some(value),
                "tls-psk-file" => query.psk = Some(value),
                "tls-hostname" => query.host = Some(value),
                "tls-verify-peer" => query.verifies_peer = is_true(&value)?,
                // Read over where it means nothing, as doc/uri.md asks; a wrong name must not weaken what is meant to protect.
                key if key.starts_with("tls-") => {
                    return Err(Error::unsupported(format!("'{key}' in the address of an export")));
                }
                _ => {}
            }
        }
        Ok(query)
    }
}

fn is_true(value: &str) -> Result<bool> {
    match value {
        "1" | "true" | "on" | "yes" => Ok(true),
        "0" | "false" | "off" | "no" => Ok(false),
        other => {
            Err(Error::invalid("the address of an export").field("tls-verify-peer", other, "true or false"))
        }
    }
}

/// A host, which may be a number of IP version 6 in brackets, and the port.
fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<IpAddr>().ok()?;
            (host.to_owned(), rest)
        }
        None => {
            let end = text.find(':').unwrap_or(text.len());
            (decode(&text[..end])?, &text[end..])
        }
    };
    let port = match port.strip_prefix(':') {
        Some(digits) if !digits.is_empty() => digits.parse().ok().filter(|port| *port != 0)?,
        Some(_) => PORT,
        None if port.is_empty() => PORT,
        None => return None,
    };
    (!host.is_empty()).then_some((host, port))
}

/// The text that percent signs stand in for. `None` if it is malformed, no UTF-8, or holds a zero byte.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits)
            .ok()
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|byte| *byte != 0)?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;

    fn of(text: &str) -> Address {
        Address::parse(text.as_ref()).unwrap().unwrap()
    }

    #[test]
    fn addresses_are_read_as_libnbd_reads_them() {
        let tcp = |host: &str, port| Endpoint::Tcp(host.to_owned(), port);
        assert_eq!(of("nbd://vm7").endpoint, tcp("vm7", 10809));
        assert_eq!(of("nbd://vm7/").export, "");
        assert_eq!(of("nbd://vm7:1234/disk%201").export, "disk 1");
        assert_eq!(of("nbd://vm7:1234//abs").export, "/abs");
        assert_eq!(of("nbd://[::1]:99/x").endpoint, tcp("::1", 99));
        let unix = of("nbd+unix:///a/b?socket=/run/my%20sock");
        assert_eq!((unix.endpoint, unix.export.as_str()), (Endpoint::Unix("/run/my sock".into()), "a/b"));
        assert_eq!(of("nbd+unix://?socket=s").export, "");
        let tls = of("nbds://vm7/?tls-certificates=/pki&tls-verify-peer=false").tls.unwrap();
        assert_eq!(
            (tls.certificates, tls.verifies_peer, tls.host.as_str()),
            (Some("/pki".into()), false, "vm7")
        );
        assert_eq!(of("nbds+unix://user@/?socket=s").tls.unwrap().host, "localhost");
    }

    #[test]
    fn what_is_no_address_is_a_path_or_an_error() {
        for path in ["disk.raw", "/nbd://x", "nbd", "nbd:x", "http://x/y", "-"] {
            assert_eq!(Address::parse(path.as_ref()).unwrap(), None, "{path}");
        }
        let kind = |text: &str| Address::parse(text.as_ref()).unwrap_err().kind();
        for wrong in [
            "nbd://",
            "nbd:///x",
            "nbd://h:0/",
            "nbd://h:99999/",
            "nbd://[x]/",
            "nbd://h/%zz",
            "nbd://h/%00",
            "nbd://h/a#b",
            "nbd+unix:///x",
            "nbd+unix://h/x?socket=s",
            "nbd://h/?socket=s",
            "nbds://h/?tls-verify-peer=maybe",
        ] {
            assert_eq!(kind(wrong), ErrorKind::Invalid, "{wrong}");
        }
        for beyond in
            ["nbd+vsock://2/", "nbds+unix://u@/?socket=s&tls-psk-file=keys", "nbds://h/?tls-verify-pear=1"]
        {
            assert_eq!(kind(beyond), ErrorKind::Unsupported, "{beyond}");
        }
    }
}
