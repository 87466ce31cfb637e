//! A repository that a password opened: its configuration, and what is stored in it by name or by blob.

use std::io::ErrorKind as IoErrorKind;
use std::num::NonZero;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use block::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::crypto::{Key, random};
use crate::index::Index;
use crate::lock::{self, Lock};
use crate::pack::{BlobKind, Place};
use crate::snapshot::{Snapshot, Tree};
use crate::storage::{Denied, Kind, Storage};
use crate::unlocked::{Unlocked, from_json, missing, to_json};
use crate::{Id, polynomial, time};

/// What it takes to try a password: scrypt's parameters (RFC 7914, section 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyCost {
    /// The logarithm to base 2 of `N`.
    pub log_n: u8,
    /// The block size.
    pub r: u32,
    /// How many parts are made, each by itself.
    pub p: u32,
}

impl KeyCost {
    /// That of keys that are made here: the least with 32 MiB of memory that OWASP's "Password Storage Cheat Sheet" recommends. restic makes keys of
    /// this memory, with as many parts as take half a second.
    pub const RECOMMENDED: Self = Self { log_n: 15, r: 8, p: 3 };
    /// None to speak of: for tests, which open a repository hundreds of times.
    pub const LEAST: Self = Self { log_n: 1, r: 1, p: 1 };
}

/// The most that a key file may demand: 1 GiB of memory.
const SCRYPT_BYTES_MAX: u64 = 1 << 30;
/// The most memory of parts that are made at once, unless one alone takes more.
const SCRYPT_AT_ONCE_BYTES_MAX: u64 = 256 << 20;

#[derive(Serialize, Deserialize)]
struct ConfigFile {
    version: u32,
    id: Id,
    chunker_polynomial: String,
}

#[derive(Serialize, Deserialize)]
struct KeyFile {
    created: String,
    username: String,
    hostname: String,
    kdf: String,
    #[serde(rename = "N")]
    n: u64,
    r: u32,
    p: u32,
    salt: String,
    data: String,
}

#[derive(Serialize, Deserialize)]
struct MasterKey {
    mac: MasterMac,
    encrypt: String,
}

#[derive(Serialize, Deserialize)]
struct MasterMac {
    k: String,
    r: String,
}

/// A repository in restic's format, open, and in use by this process.
#[derive(Debug)]
pub struct Repository {
    pub(crate) inner: Arc<Unlocked>,
    /// `None` where nothing can be written: then nobody knows of this reader.
    _lock: Option<Lock>,
}

impl Repository {
    /// Makes one. `Refused` if there is one already.
    pub fn init(storage: Arc<dyn Storage>, password: &[u8]) -> Result<Self> {
        Self::init_with_cost(storage, password, KeyCost::RECOMMENDED)
    }

    /// The same with a key that costs so much.
    pub fn init_with_cost(storage: Arc<dyn Storage>, password: &[u8], cost: KeyCost) -> Result<Self> {
        if exists(&*storage)? {
            return Err(Error::refused("there is a repository already").path(storage.place()));
        }
        storage.prepare()?;
        let key = Key::random()?;
        let key_file = to_json(&seal_master(&key, password, cost)?)?;
        storage.create(Kind::Key, &Id::of(&key_file).to_string(), &key_file)?;
        let mut id = [0; 32];
        random(&mut id)?;
        let polynomial = polynomial::random_irreducible()?;
        let config = ConfigFile { version: 2, id: Id(id), chunker_polynomial: format!("{polynomial:x}") };
        // Last: what has no configuration is no repository.
        storage.create(Kind::Config, "", &key.seal(&to_json(&config)?)?)?;
        Self::begin(Unlocked { storage, key, version: config.version, id: config.id })
    }

    /// Opens one. `Refused` if there is none, if the password is wrong, or if somebody has it for themselves.
    pub fn open(storage: Arc<dyn Storage>, password: &[u8]) -> Result<Self> {
        let place = storage.place();
        if !exists(&*storage)? {
            return Err(Error::refused("there is no repository").hint("--init makes one").path(place));
        }
        let key = find_key(&*storage, password)?;
        let config = storage.read(Kind::Config, "")?;
        let config = key.open(&config).ok_or_else(|| Error::corrupt("the configuration does not decrypt"));
        let config: ConfigFile = from_json(&config.map_err(|error| error.path(&place))?, Kind::Config, "")
            .map_err(|error| error.path(&place))?;
        if !(1..=2).contains(&config.version) {
            return Err(Error::unsupported(format!("a repository of version {}", config.version))
                .hint("versions 1 and 2 are known")
                .path(place));
        }
        Self::begin(Unlocked { storage, key, version: config.version, id: config.id })
    }

    pub(crate) fn begin(inner: Unlocked) -> Result<Self> {
        let inner = Arc::new(inner);
        let lock = match Lock::take(inner.clone()) {
            Ok(lock) => Some(lock),
            Err(error) if is_read_only(&error) => None,
            Err(error) => return Err(error),
        };
        Ok(Self { inner, _lock: lock })
    }

    /// Where it is, for messages.
    pub fn place(&self) -> String {
        self.inner.storage.place()
    }

    /// Its own ID, which its copies do not have.
    pub fn id(&self) -> Id {
        self.inner.id
    }

    /// Whether it can only be read.
    pub fn is_read_only(&self) -> bool {
        self._lock.is_none()
    }

    /// Which blobs it has. To be called again to see what others have added.
    pub fn index(&self) -> Result<Index> {
        Index::load(&self.inner)
    }

    /// All snapshots, oldest first.
    pub fn snapshots(&self) -> Result<Vec<(Id, Snapshot)>> {
        let mut snapshots = Vec::new();
        for name in self.inner.storage.names(Kind::Snapshot)? {
            let id =
                Id::from_hex(&name).ok_or_else(|| Error::corrupt("a snapshot's name").path(self.place()))?;
            snapshots.push((id, self.inner.load_json::<Snapshot>(Kind::Snapshot, &name)?));
        }
        snapshots.sort_by_key(|(id, snapshot)| (snapshot.nanoseconds(), *id));
        Ok(snapshots)
    }

    /// The snapshot of which `wanted` is the ID or at least its first 8 digits; or the `latest`.
    pub fn find_snapshot(&self, wanted: &str) -> Result<(Id, Snapshot)> {
        let none =
            |what: String| Error::refused(what).hint("'leandisk snapshots' lists them").path(self.place());
        let mut snapshots = self.snapshots()?;
        if wanted == "latest" {
            return snapshots.pop().ok_or_else(|| none("there is no snapshot".into()));
        }
        let mut found = snapshots.into_iter().filter(|(id, _)| id.to_string().starts_with(wanted));
        match (found.next(), found.next()) {
            (Some(only), None) => Ok(only),
            (None, _) => Err(none(format!("there is no snapshot {wanted}"))),
            (Some(_), Some(_)) => Err(none(format!("more than one snapshot begins with {wanted}"))),
        }
    }

    /// Removes a snapshot, as `restic forget` does. What it alone needed stays until `restic prune`.
    pub fn forget(&self, id: Id) -> Result<()> {
        self.inner.storage().remove(Kind::Snapshot, &id.to_string())
    }

    /// A tree by its ID.
    pub fn tree(&self, index: &Index, id: Id) -> Result<Tree> {
        let place = index.find(BlobKind::Tree, id).ok_or_else(|| missing(id).path(self.place()))?;
        let bytes = self.blob(&place)?;
        from_json(&bytes, Kind::Pack, &id.to_string()).map_err(|error| error.path(self.place()))
    }

    /// A blob's contents. `Corrupt` if they are not what its ID says.
    pub fn blob(&self, place: &Place) -> Result<Vec<u8>> {
        self.inner.blob(place)
    }
}

/// Whether a lock could not be written because nothing can be.
fn is_read_only(error: &Error) -> bool {
    use IoErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let is_denied = error.cause::<Denied>().is_some();
    is_denied
        || error.io_source().is_some_and(|io| matches!(io.kind(), PermissionDenied | ReadOnlyFilesystem))
}

fn exists(storage: &dyn Storage) -> Result<bool> {
    Ok(!storage.names(Kind::Config)?.is_empty())
}

/// The key that a password makes. `None` if scrypt has no such cost. Its `p` parts are independent of each other, and are made at once, as far as there are
/// processors, and memory for what each of them takes.
fn derive(password: &[u8], salt: &[u8], cost: KeyCost) -> Result<Option<Key>> {
    let KeyCost { log_n, r, p } = cost;
    let Ok(params) = scrypt::Params::new(log_n, r, p) else { return Ok(None) };
    let each_bytes = (128 * u64::from(r)) << log_n;
    let fitting = usize::try_from(SCRYPT_AT_ONCE_BYTES_MAX / each_bytes).unwrap_or(usize::MAX);
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let count = processors.min(fitting).min(p as usize).max(1);
    let threads = rayon::ThreadPoolBuilder::new().num_threads(count).build();
    let threads = threads.map_err(|error| Error::io("start threads", std::io::Error::other(error)))?;
    let mut bytes = [0; 64];
    let made = threads.install(|| scrypt::scrypt(password, salt, &params, &mut bytes));
    Ok(made.ok().map(|()| Key::from_bytes(&bytes)))
}

fn seal_master(key: &Key, password: &[u8], cost: KeyCost) -> Result<KeyFile> {
    let mut salt = [0; 64];
    random(&mut salt)?;
    let user = derive(password, &salt, cost)?.ok_or_else(|| Error::unsupported("scrypt"))?;
    let master = MasterKey {
        mac: MasterMac { k: BASE64.encode(key.mac_k), r: BASE64.encode(key.mac_r) },
        encrypt: BASE64.encode(key.encrypt),
    };
    Ok(KeyFile {
        created: time::now(),
        username: lock::user_name(),
        hostname: lock::host_name(),
        kdf: "scrypt".into(),
        n: 1 << cost.log_n,
        r: cost.r,
        p: cost.p,
        salt: BASE64.encode(salt),
        data: BASE64.encode(user.seal(&to_json(&master)?)?),
    })
}

/// The master key that this password opens.
fn find_key(storage: &dyn Storage, password: &[u8]) -> Result<Key> {
    let place = storage.place();
    let mut doubt = None;
    let mut is_any_whole = false;
    for name in storage.names(Kind::Key)? {
        match storage.read(Kind::Key, &name).and_then(|bytes| open_key(&bytes, &name, password)) {
            Ok(Some(key)) => return Ok(key),
            Ok(None) => is_any_whole = true,
            Err(error) => doubt = Some(error),
        }
    }
    Err(match doubt {
        Some(doubt) if !is_any_whole => doubt,
        None if !is_any_whole => Error::corrupt("the repository has no key"),
        _ => Error::refused("the password is wrong: it opens no key of the repository"),
    }
    .path(place))
}

/// `None` if the password is another one.
fn open_key(bytes: &[u8], name: &str, password: &[u8]) -> Result<Option<Key>> {
    let file: KeyFile = from_json(bytes, Kind::Key, name)?;
    let corrupt = |what: &str| Error::corrupt(format!("key {name}: {what}"));
    if file.kdf != "scrypt" {
        return Err(Error::unsupported(format!("key {name}: its kdf is not scrypt")));
    }
    let memory = file.n.checked_mul(u64::from(file.r)).and_then(|product| product.checked_mul(128));
    if !file.n.is_power_of_two() || memory.is_none_or(|bytes| bytes > SCRYPT_BYTES_MAX) || file.p > 64 {
        return Err(corrupt("the cost of scrypt"));
    }
    let log_n = u8::try_from(file.n.trailing_zeros()).expect("at most 64");
    let decode = |text: &str, what| BASE64.decode(text).map_err(|_| corrupt(what));
    let salt = decode(&file.salt, "salt")?;
    let cost = KeyCost { log_n, r: file.r, p: file.p };
    let user = derive(password, &salt, cost)?.ok_or_else(|| corrupt("the cost of scrypt"))?;
    let Some(master) = user.open(&decode(&file.data, "data")?) else { return Ok(None) };
    let master: MasterKey = from_json(&master, Kind::Key, name)?;
    let sized = |text: &str| decode(text, "master key");
    let key = (|| {
        Some(Key {
            encrypt: sized(&master.encrypt).ok()?.try_into().ok()?,
            mac_k: sized(&master.mac.k).ok()?.try_into().ok()?,
            mac_r: sized(&master.mac.r).ok()?.try_into().ok()?,
        })
    })();
    key.map(Some).ok_or_else(|| corrupt("master key"))
}
