//! A server of restic's REST protocol in memory, that can fail, delay, cut, lie and answer garbage, from a seed.
//!
//! It follows the protocol's page (`rest_backend.rst`), version 2; like rest-server it forbids to write a file that is there.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What goes wrong with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RestFault {
    /// 503, and nothing is done.
    Busy,
    /// The connection ends before the request is looked at.
    Reset,
    /// It is done, and the connection ends without an answer.
    LostAnswer,
    /// The answer ends half-way.
    CutAnswer,
    /// Half of a file is kept, and the connection ends.
    HalfKept,
    /// Half of a file is kept, and the answer is that all is well.
    Lie,
    /// Nothing is said for so long.
    Silence(Duration),
    /// The answer is no HTTP.
    Garbage,
    /// A byte of the answer's body is another one.
    FlippedByte,
    /// 403, and nothing is done.
    Forbidden,
}

/// A file of the server, by the path below the repository.
type Files = BTreeMap<String, Vec<u8>>;

struct Shared {
    files: Mutex<Files>,
    /// What an `Authorization` header must say.
    authorization: Option<String>,
    faults: Mutex<Vec<RestFault>>,
    /// Of so many requests one fails; 0 for none.
    one_in: AtomicU64,
    /// So many requests at most.
    fault_count_left: AtomicU64,
    state: AtomicU64,
    request_count: AtomicU64,
    fault_count: AtomicU64,
    is_over: AtomicBool,
}

/// The server, which ends with this.
pub struct RestServer {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl RestServer {
    /// `authorization` is what the header of this name must say.
    pub fn start(seed: u64, authorization: Option<&str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            files: Mutex::default(),
            authorization: authorization.map(str::to_owned),
            faults: Mutex::default(),
            one_in: AtomicU64::new(0),
            fault_count_left: AtomicU64::new(0),
            state: AtomicU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            request_count: AtomicU64::new(0),
            fault_count: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = accepting.clone();
                let Ok(stream) = stream else { continue };
                std::thread::spawn(move || drop(shared.converse(&stream)));
            }
        });
        Self { shared, address }
    }

    /// `127.0.0.1:PORT`
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// As `--repo` takes it.
    pub fn repo(&self) -> String {
        format!("rest:http://{}/repo/", self.address)
    }

    /// From now on one of so many requests has one of these faults.
    pub fn shake(&self, one_in: u64, faults: &[RestFault]) {
        faults.clone_into(&mut self.shared.faults.lock().unwrap());
        self.shared.fault_count_left.store(u64::MAX, Ordering::Relaxed);
        self.shared.one_in.store(one_in, Ordering::Relaxed);
    }

    /// The next requests have this fault, so many of them.
    pub fn fail_next(&self, count: u64, fault: RestFault) {
        self.shake(1, &[fault]);
        self.shared.fault_count_left.store(count, Ordering::Relaxed);
    }

    /// All goes well again.
    pub fn calm(&self) {
        self.shared.one_in.store(0, Ordering::Relaxed);
    }

    /// Requests until now.
    pub fn request_count(&self) -> u64 {
        self.shared.request_count.load(Ordering::Relaxed)
    }

    /// Faults until now.
    pub fn fault_count(&self) -> u64 {
        self.shared.fault_count.load(Ordering::Relaxed)
    }

    /// What is there, by the path below the repository.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.shared.files.lock().unwrap().clone()
    }

    /// Puts a file there, whatever it is.
    pub fn put(&self, path: &str, contents: &[u8]) {
        self.shared.files.lock().unwrap().insert(path.to_owned(), contents.to_owned());
    }
}

impl Drop for RestServer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        // Wakes who accepts.
        drop(TcpStream::connect(self.address));
    }
}

struct Request {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Answer {
    status: &'static str,
    headers: Vec<String>,
    body: Vec<u8>,
    /// What the length says, where nothing follows.
    len_bytes: usize,
}

impl Answer {
    fn new(status: &'static str, body: Vec<u8>) -> Self {
        Self { status, headers: Vec::new(), len_bytes: body.len(), body }
    }

    fn bytes(&self) -> Vec<u8> {
        let headers: String = self.headers.iter().map(|header| format!("{header}\r\n")).collect();
        let head = format!("HTTP/1.1 {}\r\n{headers}Content-Length: {}\r\n\r\n", self.status, self.len_bytes);
        [head.as_bytes(), &self.body].concat()
    }
}

fn read_request(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    if headers.contains_key("transfer-encoding") {
        // As restic 0.18 asks for a repository: without contents, in chunks of which the first is the last.
        let (mut size, mut end) = (String::new(), String::new());
        reader.read_line(&mut size)?;
        reader.read_line(&mut end)?;
        assert_eq!((size.trim(), end.trim()), ("0", ""), "a body has its length: rest-server wants it");
    }
    let len: usize = headers.get("content-length").map_or(0, |len| len.parse().unwrap());
    let mut body = vec![0; len];
    reader.read_exact(&mut body)?;
    Ok(Some(Request { method, path: path.to_owned(), query: query.to_owned(), headers, body }))
}

impl Shared {
    fn converse(&self, stream: &TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut writer = stream;
        while let Some(request) = read_request(&mut reader)? {
            self.request_count.fetch_add(1, Ordering::Relaxed);
            let Some(fault) = self.fault() else {
                writer.write_all(&self.answer(&request).bytes())?;
                continue;
            };
            match self.faulty(&request, fault) {
                (Some(bytes), true) => writer.write_all(&bytes)?,
                (bytes, _) => {
                    writer.write_all(&bytes.unwrap_or_default())?;
                    break;
                }
            }
        }
        stream.shutdown(std::net::Shutdown::Both)
    }

    fn below(&self, count: u64) -> u64 {
        let next = |mut state: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^ state << 17
        };
        let state = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| Some(next(state)));
        (next(state.unwrap()) >> 20) % count
    }

    fn fault(&self) -> Option<RestFault> {
        let one_in = self.one_in.load(Ordering::Relaxed);
        if one_in == 0 || self.below(one_in) != 0 {
            return None;
        }
        let left = |left: u64| left.checked_sub(1);
        self.fault_count_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).ok()?;
        self.fault_count.fetch_add(1, Ordering::Relaxed);
        let faults = self.faults.lock().unwrap();
        faults.get(usize::try_from(self.below(faults.len() as u64)).unwrap()).copied()
    }

    /// What is answered, and whether the conversation goes on.
    fn faulty(&self, request: &Request, fault: RestFault) -> (Option<Vec<u8>>, bool) {
        let half = || {
            let body = request.body[..request.body.len() / 2].to_vec();
            let headers = request.headers.clone();
            Request {
                method: request.method.clone(),
                path: request.path.clone(),
                query: request.query.clone(),
                headers,
                body,
            }
        };
        match fault {
            RestFault::Busy => (Some(Answer::new("503 Service Unavailable", Vec::new()).bytes()), true),
            RestFault::Forbidden => (Some(Answer::new("403 Forbidden", Vec::new()).bytes()), true),
            RestFault::Reset => (None, false),
            RestFault::LostAnswer => {
                self.answer(request);
                (None, false)
            }
            RestFault::CutAnswer => {
                let bytes = self.answer(request).bytes();
                (Some(bytes[..bytes.len() / 2].to_vec()), false)
            }
            RestFault::HalfKept => {
                self.answer(&half());
                (None, false)
            }
            RestFault::Lie => (Some(self.answer(&half()).bytes()), true),
            RestFault::Silence(length) => {
                std::thread::sleep(length);
                (None, false)
            }
            RestFault::Garbage => (Some(b"\x00\x01 what is this\r\n\r\n".to_vec()), false),
            RestFault::FlippedByte => {
                let mut answer = self.answer(request);
                let at = self.below(answer.body.len().max(1) as u64);
                answer
                    .body
                    .iter_mut()
                    .skip(usize::try_from(at).unwrap())
                    .take(1)
                    .for_each(|byte| *byte ^= 0x10);
                (Some(answer.bytes()), true)
            }
        }
    }

    fn answer(&self, request: &Request) -> Answer {
        if self.authorization.is_some() && self.authorization.as_ref() != request.headers.get("authorization")
        {
            return Answer::new("401 Unauthorized", Vec::new());
        }
        let Some(path) = request.path.strip_prefix("/repo/") else {
            return Answer::new("404 Not Found", Vec::new());
        };
        match (request.method.as_str(), path) {
            ("POST", "") if request.query == "create=true" => Answer::new("200 OK", Vec::new()),
            ("GET", folder) if folder.ends_with('/') => self.list(folder, request),
            ("GET", path) => self.get(path, request),
            ("HEAD", path) => {
                let found = self.get(path, request);
                Answer { len_bytes: found.body.len(), body: Vec::new(), ..found }
            }
            ("POST", path) => self.post(path, &request.body),
            ("DELETE", path) => match self.files.lock().unwrap().remove(path) {
                Some(_) => Answer::new("200 OK", Vec::new()),
                None => Answer::new("404 Not Found", Vec::new()),
            },
            _ => Answer::new("405 Method Not Allowed", Vec::new()),
        }
    }

    fn list(&self, folder: &str, request: &Request) -> Answer {
        let files = self.files.lock().unwrap();
        let below =
            files.iter().filter_map(|(path, contents)| Some((path.strip_prefix(folder)?, contents.len())));
        let is_2 = request.headers.get("accept").is_some_and(|accept| accept.contains("rest.v2"));
        let entries = below.map(|(name, len)| match is_2 {
            true => format!("{{\"name\":\"{name}\",\"size\":{len}}}"),
            false => format!("\"{name}\""),
        });
        let body = format!("[{}]", entries.collect::<Vec<_>>().join(","));
        let version = if is_2 { 2 } else { 1 };
        let kind = format!("Content-Type: application/vnd.x.restic.rest.v{version}");
        Answer { headers: vec![kind], ..Answer::new("200 OK", body.into_bytes()) }
    }

    fn get(&self, path: &str, request: &Request) -> Answer {
        let files = self.files.lock().unwrap();
        let Some(contents) = files.get(path) else { return Answer::new("404 Not Found", Vec::new()) };
        let Some(range) = request.headers.get("range") else {
            return Answer::new("200 OK", contents.clone());
        };
        let (first, last) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')).unwrap();
        let first: usize = first.parse().unwrap();
        let last = last.parse().unwrap_or(usize::MAX).min(contents.len().saturating_sub(1));
        if first >= contents.len() {
            return Answer::new("416 Range Not Satisfiable", Vec::new());
        }
        Answer::new("206 Partial Content", contents[first..=last].to_vec())
    }

    fn post(&self, path: &str, body: &[u8]) -> Answer {
        let mut files = self.files.lock().unwrap();
        if files.contains_key(path) {
            return Answer::new("403 Forbidden", Vec::new());
        }
        files.insert(path.to_owned(), body.to_owned());
        Answer::new("200 OK", Vec::new())
    }
}
