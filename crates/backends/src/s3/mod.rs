//! A bucket of S3, or of what speaks its protocol, addressed by path.
//!
//! Each request is signed with the hash of its body, which the server compares: an object is made by one request, whole or not at all.

mod keys;
mod list;
mod sign;

use block::{Error, Result};
use repository::{Kind, WHOLE_BYTES_MAX};
use ureq::http::Method;

use crate::address::S3Address;
use crate::backend::{Backend, Limits, is_id, relative_path};
use crate::fault::{Attempt, Fault, shown};
use crate::http::{self, Answer, Authorities, Client, Proxy, Request, unexpected};

pub(crate) use keys::Keys;

use list::{Listed, field};
use sign::{Signed, encoded};

/// Requests at the same time: restic's own default.
const CONNECTION_COUNT: usize = 5;
/// A page has a thousand names of at most a kilobyte, with some hundred bytes beside each.
const PAGE_BYTES_MAX: u64 = 8 << 20;
/// A hundred million files.
const PAGE_COUNT_MAX: usize = 100_000;
/// What a server calls a bucket that is not there: then nothing is.
const NO_BUCKET: &str = "NoSuchBucket";
const DEFAULT_REGION: &str = "us-east-1";

/// A repository in a bucket.
pub(crate) struct S3 {
    client: Client,
    address: S3Address,
    keys: Keys,
    region: String,
}

/// What a request is about.
struct Asked<'a> {
    method: Method,
    /// Below the bucket; empty for the bucket itself.
    key: &'a str,
    query: &'a [(&'a str, &'a str)],
    range: Option<(u64, usize)>,
    body: Option<&'a [u8]>,
    answer_bytes_max: u64,
}

impl Default for Asked<'_> {
    fn default() -> Self {
        Self {
            method: Method::GET,
            key: "",
            query: &[],
            range: None,
            body: None,
            answer_bytes_max: PAGE_BYTES_MAX,
        }
    }
}

impl S3 {
    pub(crate) fn new(
        address: S3Address,
        keys: Keys,
        region: Option<String>,
        authorities: &Authorities,
        limits: &Limits,
    ) -> Result<Self> {
        let url = format!("{}://", address.scheme);
        let client = Client::new(&url, authorities, Proxy::OfEnvironment, limits)?;
        let region = region.or_else(|| region_in(&address.host)).unwrap_or_else(|| DEFAULT_REGION.into());
        Ok(Self { client, address, keys, region })
    }

    /// An object's key.
    fn key(&self, kind: Kind, name: &str) -> String {
        self.below_prefix(&relative_path(kind, name))
    }

    fn below_prefix(&self, path: &str) -> String {
        match self.address.prefix.as_str() {
            "" => path.to_owned(),
            prefix => format!("{prefix}/{path}"),
        }
    }

    fn ask(&self, asked: &Asked<'_>) -> Attempt<Answer> {
        let S3Address { scheme, host, bucket, .. } = &self.address;
        let path = match asked.key {
            "" => encoded(&format!("/{bucket}"), true),
            key => encoded(&format!("/{bucket}/{key}"), true),
        };
        let signed = Signed {
            method: asked.method.as_str(),
            host,
            path: &path,
            query: asked.query,
            body: asked.body.unwrap_or_default(),
            time: &repository::basic_now(),
            region: &self.region,
        };
        let mut headers = signed.headers(&self.keys);
        // As it was signed, with a port that goes without saying.
        headers.push(("host", host.clone()));
        headers.extend(asked.range.map(|(offset, len)| http::range(offset, len)));
        let query = signed.canonical_query();
        let mark = if query.is_empty() { "" } else { "?" };
        self.client.send(&Request {
            method: asked.method.clone(),
            url: &format!("{scheme}://{host}{path}{mark}{query}"),
            headers,
            body: asked.body,
            answer_bytes_max: asked.answer_bytes_max,
        })
    }

    fn page(&self, prefix: &str, token: Option<&str>) -> Attempt<Listed> {
        let mut query = vec![("list-type", "2"), ("prefix", prefix)];
        query.extend(token.map(|token| ("continuation-token", token)));
        let answer = self.ask(&Asked { query: &query, ..Asked::default() })?;
        match (answer.status, field(&answer.body, "Code").as_deref()) {
            (200, _) => list::parse(&answer.body),
            (_, Some(NO_BUCKET)) => Ok(Listed { keys: Vec::new(), next: None }),
            _ => Err(self.fault("list", &answer)),
        }
    }

    fn fault(&self, what: &str, answer: &Answer) -> Fault {
        let code = field(&answer.body, "Code").map(|code| shown(&code)).unwrap_or_default();
        match code.as_str() {
            NO_BUCKET => {
                Fault::Final(Error::refused(format!("there is no bucket '{}'", self.address.bucket)))
            }
            // These come with a status that would not pass.
            "RequestTimeout" => Fault::passing(format!("{what}: {code}"), std::io::ErrorKind::TimedOut),
            "AuthorizationHeaderMalformed" | "PermanentRedirect" => self.other_region(&code, answer),
            _ => unexpected(what, answer, &code),
        }
    }

    fn other_region(&self, code: &str, answer: &Answer) -> Fault {
        let region = answer.header("x-amz-bucket-region").map(str::to_owned);
        let region = region.or_else(|| field(&answer.body, "Region")).map(|region| shown(&region));
        let told = Error::refused(format!("the bucket is not in the region {}: {code}", self.region));
        Fault::Final(told.hint(match region {
            Some(region) => format!("AWS_DEFAULT_REGION={region}, or -o s3.region={region}"),
            None => "AWS_DEFAULT_REGION or -o s3.region names its region".into(),
        }))
    }

    fn has_bucket(&self) -> Attempt<bool> {
        let query = [("list-type", "2"), ("max-keys", "1")];
        let answer = self.ask(&Asked { query: &query, ..Asked::default() })?;
        match (answer.status, field(&answer.body, "Code").as_deref()) {
            (200, _) => Ok(true),
            (_, Some(NO_BUCKET)) => Ok(false),
            _ => Err(self.fault("look at the bucket", &answer)),
        }
    }
}

/// The region that is a part of the name of one of Amazon's servers.
fn region_in(host: &str) -> Option<String> {
    let name = host.split(':').next()?.strip_suffix(".amazonaws.com")?;
    let region = name
        .strip_prefix("s3.dualstack.")
        .or_else(|| name.strip_prefix("s3."))
        .or_else(|| name.strip_prefix("s3-"))?;
    (!region.contains('.')).then(|| region.to_owned())
}

fn what(act: &str, kind: Kind, name: &str) -> String {
    match name {
        "" => format!("{act} the {}", kind.word()),
        _ => format!("{act} {} {name}", kind.word()),
    }
}

impl Backend for S3 {
    fn place(&self) -> String {
        self.address.shown()
    }

    /// Makes the bucket, as restic does.
    fn prepare(&self) -> Attempt<()> {
        if self.has_bucket()? {
            return Ok(());
        }
        let body = match self.region.as_str() {
            DEFAULT_REGION => String::new(),
            region => format!(
                "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>"
            ),
        };
        let answer =
            self.ask(&Asked { method: Method::PUT, body: Some(body.as_bytes()), ..Asked::default() })?;
        match answer.status {
            200 => Ok(()),
            _ => Err(self.fault("make the bucket", &answer)),
        }
    }

    fn names(&self, kind: Kind) -> Attempt<Vec<String>> {
        let prefix = self.below_prefix(&format!("{}/", kind.folder().unwrap_or_default()));
        let (mut names, mut token) = (Vec::new(), None::<String>);
        for _ in 0..PAGE_COUNT_MAX {
            let page = self.page(&prefix, token.as_deref())?;
            let last_parts = page.keys.iter().filter_map(|key| key.rsplit('/').next());
            names.extend(last_parts.filter(|name| is_id(name)).map(str::to_owned));
            if page.next.is_none() {
                return Ok(names);
            }
            if page.next == token {
                return Err(Fault::corrupt("the server's list of files goes round in a circle"));
            }
            token = page.next;
        }
        Err(Fault::corrupt("the server's list of files does not end"))
    }

    fn len_bytes(&self, kind: Kind, name: &str) -> Attempt<Option<u64>> {
        let asked = Asked { method: Method::HEAD, key: &self.key(kind, name), ..Asked::default() };
        let answer = self.ask(&asked)?;
        match (answer.status, answer.content_length()) {
            (200, Some(len_bytes)) => Ok(Some(len_bytes)),
            (200, None) => {
                Err(Fault::corrupt(format!("{}: the server tells no length", what("find", kind, name))))
            }
            (404, _) => Ok(None),
            _ => Err(self.fault(&what("find", kind, name), &answer)),
        }
    }

    fn read(&self, kind: Kind, name: &str) -> Attempt<Vec<u8>> {
        let asked =
            Asked { key: &self.key(kind, name), answer_bytes_max: WHOLE_BYTES_MAX, ..Asked::default() };
        let answer = self.ask(&asked)?;
        match answer.status {
            200 => Ok(answer.body),
            _ => Err(self.fault(&what("read", kind, name), &answer)),
        }
    }

    fn read_part(&self, kind: Kind, name: &str, offset: u64, len: usize) -> Attempt<Vec<u8>> {
        let range = Some((offset, len));
        let asked =
            Asked { key: &self.key(kind, name), range, answer_bytes_max: len as u64, ..Asked::default() };
        let answer = self.ask(&asked)?;
        match answer.status {
            200..=299 => http::part(answer, &what("read", kind, name), len),
            _ => Err(self.fault(&what("read", kind, name), &answer)),
        }
    }

    fn create(&self, kind: Kind, name: &str, contents: &[u8]) -> Attempt<()> {
        let key = self.key(kind, name);
        let asked = Asked { method: Method::PUT, key: &key, body: Some(contents), ..Asked::default() };
        let answer = self.ask(&asked)?;
        match answer.status {
            200 => Ok(()),
            _ => Err(self.fault(&what("write", kind, name), &answer)),
        }
    }

    fn remove(&self, kind: Kind, name: &str) -> Attempt<()> {
        let asked = Asked { method: Method::DELETE, key: &self.key(kind, name), ..Asked::default() };
        let answer = self.ask(&asked)?;
        match answer.status {
            200..=299 | 404 => Ok(()),
            _ => Err(self.fault(&what("remove", kind, name), &answer)),
        }
    }

    fn connection_count(&self) -> usize {
        CONNECTION_COUNT
    }
}

#[cfg(test)]
mod tests {
    use super::region_in;

    #[test]
    fn a_server_of_amazons_names_its_region() {
        assert_eq!(region_in("s3.eu-central-1.amazonaws.com"), Some("eu-central-1".into()));
        assert_eq!(region_in("s3-eu-west-1.amazonaws.com"), Some("eu-west-1".into()));
        assert_eq!(region_in("s3.dualstack.us-west-2.amazonaws.com:443"), Some("us-west-2".into()));
        assert_eq!(region_in("s3.amazonaws.com"), None);
        assert_eq!(region_in("minio:9000"), None);
    }
}
