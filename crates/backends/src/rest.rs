//! restic's REST protocol, version 2; lists of version 1 are read as well.
//!
//! A file is written by one request, whose length the server checks; what has its name then is looked at once more.

use block::{Error, Result};
use mutants::broken;
use repository::{Kind, WHOLE_BYTES_MAX};
use serde::Deserialize;
use ureq::http::Method;

use crate::address::HttpAddress;
use crate::backend::{Backend, Limits, is_id};
use crate::fault::{Attempt, Fault};
use crate::http::{self, Answer, Authorities, Client, Proxy, Request, unexpected};
use crate::secret::Secret;

/// Requests at the same time: restic's own default.
pub(crate) const CONNECTION_COUNT: usize = 5;
const VERSION_2: &str = "application/vnd.x.restic.rest.v2";
/// A list of three million files.
const LIST_BYTES_MAX: u64 = 256 << 20;

/// An entry of a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    /// As version 2 has it.
    Described { name: String },
    /// As version 1 has it.
    Name(String),
}

/// A repository of a REST server.
pub(crate) struct Rest {
    client: Client,
    /// Ends with a slash.
    root: String,
    place: String,
    authorization: Option<Secret>,
}

impl Rest {
    pub(crate) fn new(
        address: &HttpAddress,
        place: String,
        authorities: &Authorities,
        proxy: Proxy,
        limits: &Limits,
    ) -> Result<Self> {
        let root = format!("{}/", address.url.trim_end_matches('/'));
        let client = Client::new(&root, authorities, proxy, limits)?;
        let authorization = address
            .credentials
            .as_ref()
            .map(|(user, password)| Secret(http::basic_authorization(user, &password.0)));
        Ok(Self { client, root, place, authorization })
    }

    fn url(&self, kind: Kind, name: &str) -> String {
        match kind.folder() {
            Some(folder) => format!("{}{folder}/{name}", self.root),
            None => format!("{}config", self.root),
        }
    }

    fn ask(
        &self,
        method: Method,
        url: &str,
        body: Option<&[u8]>,
        extra: Option<(&'static str, String)>,
        answer_bytes_max: u64,
    ) -> Attempt<Answer> {
        let mut headers = vec![("accept", VERSION_2.to_owned())];
        headers.extend(self.authorization.iter().map(|secret| ("authorization", secret.0.clone())));
        headers.extend(extra);
        if body.is_some() {
            headers.push(("content-type", "application/octet-stream".into()));
        }
        self.client.send(&Request { method, url, headers, body, answer_bytes_max })
    }
}

fn what(act: &str, kind: Kind, name: &str) -> String {
    match name {
        "" => format!("{act} the {}", kind.word()),
        _ => format!("{act} {} {name}", kind.word()),
    }
}

impl Backend for Rest {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn prepare(&self) -> Attempt<()> {
        let answer =
            self.ask(Method::POST, &format!("{}?create=true", self.root), Some(&[]), None, LIST_BYTES_MAX)?;
        match answer.status {
            200..=299 => Ok(()),
            _ => Err(unexpected("make the repository's folders", &answer, "")),
        }
    }

    fn names(&self, kind: Kind) -> Attempt<Vec<String>> {
        let answer = self.ask(Method::GET, &self.url(kind, ""), None, None, LIST_BYTES_MAX)?;
        match answer.status {
            200 => listed(&answer.body, kind),
            404 => Ok(Vec::new()),
            _ => Err(unexpected(&format!("list files of the kind {}", kind.word()), &answer, "")),
        }
    }

    fn len_bytes(&self, kind: Kind, name: &str) -> Attempt<Option<u64>> {
        let answer = self.ask(Method::HEAD, &self.url(kind, name), None, None, 0)?;
        match (answer.status, answer.content_length()) {
            (200, Some(len_bytes)) => Ok(Some(len_bytes)),
            (200, None) => {
                Err(Fault::corrupt(format!("{}: the server tells no length", what("find", kind, name))))
            }
            (404, _) => Ok(None),
            _ => Err(unexpected(&what("find", kind, name), &answer, "")),
        }
    }

    fn read(&self, kind: Kind, name: &str) -> Attempt<Vec<u8>> {
        let answer = self.ask(Method::GET, &self.url(kind, name), None, None, WHOLE_BYTES_MAX)?;
        match answer.status {
            200 => Ok(answer.body),
            _ => Err(unexpected(&what("read", kind, name), &answer, "")),
        }
    }

    fn read_part(&self, kind: Kind, name: &str, offset: u64, len: usize) -> Attempt<Vec<u8>> {
        let range = http::range(offset, len);
        let answer = self.ask(Method::GET, &self.url(kind, name), None, Some(range), len as u64)?;
        match answer.status {
            200..=299 => http::part(answer, &what("read", kind, name), len),
            _ => Err(unexpected(&what("read", kind, name), &answer, "")),
        }
    }

    fn create(&self, kind: Kind, name: &str, contents: &[u8]) -> Attempt<()> {
        let answer = self.ask(Method::POST, &self.url(kind, name), Some(contents), None, LIST_BYTES_MAX)?;
        match answer.status {
            200..=299 => self.check_made(kind, name, contents.len() as u64),
            _ => Err(unexpected(&what("write", kind, name), &answer, "")),
        }
    }

    fn remove(&self, kind: Kind, name: &str) -> Attempt<()> {
        let answer = self.ask(Method::DELETE, &self.url(kind, name), None, None, LIST_BYTES_MAX)?;
        match answer.status {
            200..=299 | 404 => Ok(()),
            _ => Err(unexpected(&what("remove", kind, name), &answer, "")),
        }
    }

    fn connection_count(&self) -> usize {
        CONNECTION_COUNT
    }
}

impl Rest {
    /// What the server said that it had taken is there, as long as it is.
    fn check_made(&self, kind: Kind, name: &str, len_bytes: u64) -> Attempt<()> {
        let found = if broken!(AnswerIsBelieved) { Some(len_bytes) } else { self.len_bytes(kind, name)? };
        match found == Some(len_bytes) {
            true => Ok(()),
            false => Err(Fault::Passing(Error::io(
                what("write", kind, name),
                std::io::Error::new(
                    std::io::ErrorKind::WriteZero,
                    "the server said that it had taken the file, and has not all of it",
                ),
            ))),
        }
    }
}

fn listed(body: &[u8], kind: Kind) -> Attempt<Vec<String>> {
    // rclone says so of a folder without files.
    let entries: Option<Vec<Entry>> = serde_json::from_slice(body).map_err(|error| {
        Fault::corrupt(format!("the server's list of files of the kind {}: {error}", kind.word()))
    })?;
    let names = entries.unwrap_or_default().into_iter().map(|entry| match entry {
        Entry::Described { name } | Entry::Name(name) => name,
    });
    Ok(names.filter(|name| is_id(name)).collect())
}
