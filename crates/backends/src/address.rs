//! Names of repositories, spelled as restic spells them.

use std::path::PathBuf;

use block::{Error, Result};

use crate::secret::Secret;

/// Kinds of places that restic knows, and Leandisk does not.
const OTHERS: [&str; 4] = ["swift:", "b2:", "azure:", "gs:"];

/// Where a repository is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Address {
    Local(PathBuf),
    Rest(HttpAddress),
    Rclone(String),
    S3(S3Address),
    Sftp(SftpAddress),
}

/// An address of HTTP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HttpAddress {
    /// Without user and password.
    pub(crate) url: String,
    pub(crate) credentials: Option<(String, Secret)>,
}

/// A bucket, and what names of files in it begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct S3Address {
    /// `http` or `https`.
    pub(crate) scheme: &'static str,
    /// With its port.
    pub(crate) host: String,
    pub(crate) bucket: String,
    /// Without slashes at its ends; empty if the repository is all of the bucket.
    pub(crate) prefix: String,
}

/// A folder of a host with SFTP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SftpAddress {
    pub(crate) user: Option<String>,
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    /// One that does not begin with a slash lies below the user's folder there.
    pub(crate) path: String,
}

impl Address {
    /// What restic takes; `Unsupported` if only restic does.
    pub(crate) fn parse(name: &str) -> Result<Self> {
        if let Some(other) = OTHERS.into_iter().find(|other| name.starts_with(other)) {
            return Err(Error::unsupported(format!("repositories at {other} are not supported"))
                .hint("rclone: reaches many more; or 'restic copy' takes snapshots from another repository to there"));
        }
        let after = |scheme| name.strip_prefix(scheme);
        if let Some(url) = after("rest:") {
            return HttpAddress::parse(url).map(Self::Rest);
        }
        if let Some(remote) = after("rclone:") {
            return rclone(remote).map(Self::Rclone);
        }
        if let Some(rest) = after("s3:") {
            return S3Address::parse(rest).map(Self::S3);
        }
        if let Some(rest) = after("sftp:") {
            return SftpAddress::parse(rest).map(Self::Sftp);
        }
        Ok(Self::Local(PathBuf::from(after("local:").unwrap_or(name))))
    }

    /// As restic takes it, without passwords.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Local(path) => path.display().to_string(),
            Self::Rest(address) => format!("rest:{}", address.url),
            Self::Rclone(remote) => format!("rclone:{remote}"),
            Self::S3(address) => address.shown(),
            Self::Sftp(address) => address.shown(),
        }
    }
}

fn malformed(what: &str, expected: &str) -> Error {
    Error::invalid(format!("the repository's name: {what}")).hint(format!("it is spelled {expected}"))
}

fn rclone(remote: &str) -> Result<String> {
    match remote.starts_with('-') || !remote.contains(':') || remote.contains(char::is_control) {
        true => Err(malformed("rclone's remote is missing", "rclone:REMOTE:PATH")),
        false => Ok(remote.to_owned()),
    }
}

/// Both parts, the second of which begins with `at` or is empty.
fn split_before(text: &str, at: char) -> (&str, &str) {
    text.split_at(text.find(at).unwrap_or(text.len()))
}

fn is_host(host: &str) -> bool {
    let is_odd =
        |letter: char| letter.is_whitespace() || letter.is_control() || "/?#@\\\"<>".contains(letter);
    !host.is_empty() && !host.starts_with('-') && !host.contains(is_odd)
}

impl HttpAddress {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        const EXPECTED: &str = "rest:http(s)://[USER:PASSWORD@]HOST[:PORT]/PATH/";
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| malformed("no http:// or https://", EXPECTED))?;
        if !["http", "https"].contains(&scheme) {
            return Err(malformed("it is neither http nor https", EXPECTED));
        }
        let (authority, path) = split_before(rest, '/');
        let (user_info, host) = match authority.rsplit_once('@') {
            Some((user_info, host)) => (Some(user_info), host),
            None => (None, authority),
        };
        if !is_host(host) || path.contains(['?', '#']) || path.contains(char::is_control) {
            return Err(malformed("the host or the path", EXPECTED));
        }
        let credentials = user_info.map(|info| {
            let (user, password) = info.split_once(':').unwrap_or((info, ""));
            (decoded(user), Secret(decoded(password)))
        });
        let path: String = path
            .chars()
            .map(|letter| if letter == ' ' { "%20".into() } else { letter.to_string() })
            .collect();
        Ok(Self { url: format!("{scheme}://{host}{path}"), credentials })
    }
}

/// `%40` as `@` and so on; what is no such sign stays as it is.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).filter(|_| byte == b'%');
        let number = digits
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        out.push(number.unwrap_or(byte));
        at += if number.is_some() { 3 } else { 1 };
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

impl S3Address {
    fn parse(text: &str) -> Result<Self> {
        const EXPECTED: &str = "s3:[http(s)://]HOST[:PORT]/BUCKET[/PREFIX]";
        let (scheme, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => ("http", rest),
            (None, Some(rest)) => ("https", rest),
            (None, None) => ("https", text.strip_prefix("//").unwrap_or(text)),
        };
        let (host, path) = split_before(rest, '/');
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let bucket = parts.next().ok_or_else(|| malformed("the bucket is missing", EXPECTED))?.to_owned();
        let prefix = parts.collect::<Vec<_>>().join("/");
        let is_odd = |text: &str| {
            text.contains(char::is_control) || text.split('/').any(|part| part == "." || part == "..")
        };
        if !is_host(host) || !is_host(&bucket) || is_odd(&bucket) || is_odd(&prefix) {
            return Err(malformed("the host, the bucket or the prefix", EXPECTED));
        }
        Ok(Self { scheme, host: host.to_owned(), bucket, prefix })
    }

    pub(crate) fn shown(&self) -> String {
        let Self { scheme, host, bucket, prefix } = self;
        format!("s3:{scheme}://{host}/{bucket}/{prefix}").trim_end_matches('/').to_owned()
    }
}

impl SftpAddress {
    fn parse(text: &str) -> Result<Self> {
        const EXPECTED: &str = "sftp:[USER@]HOST:PATH, or sftp://[USER@]HOST[:PORT]//PATH";
        let (place, port, path) = match text.strip_prefix("//") {
            Some(rest) => {
                let (authority, path) =
                    rest.split_once('/').ok_or_else(|| malformed("the path is missing", EXPECTED))?;
                let (place, port) = with_port(authority).ok_or_else(|| malformed("the port", EXPECTED))?;
                (place, port, path)
            }
            None => {
                let (place, path) =
                    text.split_once(':').ok_or_else(|| malformed("the path is missing", EXPECTED))?;
                (place, None, path)
            }
        };
        let (user, host) = match place.rsplit_once('@') {
            Some((user, host)) => (Some(user.to_owned()), host),
            None => (None, place),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_odd_user =
            |user: &String| user.is_empty() || user.starts_with('-') || user.contains(char::is_control);
        if !is_host(host) || user.as_ref().is_some_and(is_odd_user) {
            return Err(malformed("the user or the host", EXPECTED));
        }
        match path {
            "" => Err(malformed("the path is missing", EXPECTED)),
            path if path.starts_with('~') => Err(malformed(
                "its path begins with ~, which servers do not understand",
                "with a path that does not begin with /, which lies below the user's folder",
            )),
            path => Ok(Self {
                user,
                host: host.to_owned(),
                port,
                path: match path.trim_end_matches('/') {
                    "" => "/".into(),
                    path => path.to_owned(),
                },
            }),
        }
    }

    pub(crate) fn shown(&self) -> String {
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        match self.port {
            Some(port) => format!("sftp://{user}{}:{port}/{}", self.host, self.path),
            None => format!("sftp:{user}{}:{}", self.host, self.path),
        }
    }
}

/// `[HOST]:PORT`, `HOST:PORT` or either without a port. `None` if that is no port.
fn with_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let after_bracket = authority.rfind(']').map_or(0, |at| at + 1);
    match authority[after_bracket..].rfind(':') {
        Some(at) => {
            let port = authority[after_bracket + at + 1..].parse().ok().filter(|port| *port > 0)?;
            Some((&authority[..after_bracket + at], Some(port)))
        }
        None => Some((authority, None)),
    }
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;

    #[track_caller]
    fn shown(name: &str) -> String {
        Address::parse(name).unwrap().shown()
    }

    #[test]
    fn names_are_read_as_restic_reads_them() {
        assert_eq!(Address::parse("/srv/a:b").unwrap(), Address::Local("/srv/a:b".into()));
        assert_eq!(Address::parse("local:x").unwrap(), Address::Local("x".into()));
        let Address::Rest(rest) = Address::parse("rest:https://me:p%40ss%3a@[::1]:8000/a b/").unwrap() else {
            panic!("a REST server")
        };
        assert_eq!(rest.url, "https://[::1]:8000/a%20b/");
        assert_eq!(rest.credentials, Some(("me".into(), Secret("p@ss:".into()))));
        let s3 = |scheme, host: &str, bucket: &str, prefix: &str| {
            Address::S3(S3Address { scheme, host: host.into(), bucket: bucket.into(), prefix: prefix.into() })
        };
        for (name, address) in [
            ("s3:s3.amazonaws.com/bucket", s3("https", "s3.amazonaws.com", "bucket", "")),
            ("s3://s3.amazonaws.com/bucket/a//b/", s3("https", "s3.amazonaws.com", "bucket", "a/b")),
            ("s3:http://localhost:9000/bucket/a", s3("http", "localhost:9000", "bucket", "a")),
        ] {
            assert_eq!(Address::parse(name).unwrap(), address, "{name}");
        }
        let sftp = |user: Option<&str>, host: &str, port, path: &str| {
            Address::Sftp(SftpAddress {
                user: user.map(str::to_owned),
                host: host.into(),
                port,
                path: path.into(),
            })
        };
        for (name, address) in [
            ("sftp:nas:/srv/backup", sftp(None, "nas", None, "/srv/backup")),
            ("sftp:me@realm@nas:backup/", sftp(Some("me@realm"), "nas", None, "backup")),
            ("sftp://me@nas:2222//srv/backup", sftp(Some("me"), "nas", Some(2222), "/srv/backup")),
            ("sftp://[::1]:22/backup", sftp(None, "::1", Some(22), "backup")),
            ("sftp://nas//", sftp(None, "nas", None, "/")),
        ] {
            assert_eq!(Address::parse(name).unwrap(), address, "{name}");
        }
    }

    #[test]
    fn names_that_are_none_are_refused_and_passwords_are_not_shown() {
        for name in [
            "rest:nas:8000/",
            "rest:ftp://nas/",
            "rest:http:///a",
            "rest:http://a b/",
            "s3:",
            "s3:host",
            "s3:http://host/",
            "s3:host/bucket/../x",
            "sftp:nas",
            "sftp:nas:",
            "sftp:-oProxyCommand=x:/a",
            "sftp:-l@nas:/a",
            "sftp:nas:~/a",
            "sftp://nas:port//a",
            "sftp://nas",
            "rclone:",
            "rclone:-x:y",
            "rclone:remote",
        ] {
            assert_eq!(Address::parse(name).map_err(|error| error.kind()), Err(ErrorKind::Invalid), "{name}");
        }
        assert_eq!(Address::parse("b2:x").unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(shown("rest:http://me:secret@nas:8000/x/"), "rest:http://nas:8000/x/");
        assert_eq!(shown("sftp://me@nas:22//srv"), "sftp://me@nas:22//srv");
        assert_eq!(shown("s3:host/bucket"), "s3:https://host/bucket");
        assert!(!format!("{:?}", Address::parse("rest:http://me:secret@nas/")).contains("secret"));
    }
}
