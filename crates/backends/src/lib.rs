//! Places on other machines that hold a repository: a REST server, whatever rclone reaches, a bucket of S3, a folder behind SFTP.
//!
//! Each is named as restic names it, and laid out as restic lays it out. What a server answers is not trusted: its length is bounded, names are IDs
//! or not looked at, and what a file holds is compared with the hash that names it by who reads it (`repository`).
//!
//! Invariants: a file is there as a whole or not at all under its name; passwords and keys are in no message and on no command line.
//!
//! Absent on purpose: S3's multipart uploads, which packs of 16 MiB do not need; caches.

mod address;
mod backend;
mod fault;
mod http;
#[cfg(feature = "mutants")]
mod mutant;
mod rclone;
mod rest;
mod s3;
mod secret;
mod sftp;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use block::{Error, Result};
use repository::{Folder, Storage};

pub use backend::Limits;
#[cfg(feature = "mutants")]
pub use mutant::Mutant;

use address::{Address, HttpAddress};
use backend::Retrying;
use http::{Authorities, Proxy};
use rclone::Rclone;
use rest::Rest;
use s3::{Keys, S3};
use secret::Secret;
use sftp::Sftp;

/// The extended options (`-o`) that are known.
const EXTENDED: [&str; 5] = ["rclone.program", "rclone.args", "s3.region", "sftp.command", "sftp.args"];

/// How a place is reached, beyond its name.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Options {
    /// A file with the certificates of the authorities that alone are believed; otherwise the system's.
    pub authorities: Option<PathBuf>,
    /// restic's extended options.
    pub extended: BTreeMap<String, String>,
    /// How long anything is waited for.
    pub limits: Limits,
}

impl Options {
    /// Whether this is `KEY=VALUE` of a repository.
    pub fn is_extended(text: &str) -> bool {
        text.split_once('=').is_some_and(|(key, _)| EXTENDED.contains(&key))
    }

    /// Adds `KEY=VALUE`. `Invalid` if there is no such option.
    pub fn add(&mut self, text: &str) -> Result<()> {
        let (key, value) = text.split_once('=').ok_or_else(|| {
            Error::invalid(format!("the option '{text}'")).hint("KEY=VALUE, as sftp.command=...")
        })?;
        if !EXTENDED.contains(&key) {
            return Err(Error::invalid(format!("there is no option '{key}' of a repository"))
                .hint(format!("known are {}", EXTENDED.join(", "))));
        }
        self.extended.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn extended(&self, key: &str) -> Option<&str> {
        self.extended.get(key).map(String::as_str)
    }
}

/// The name of a repository as it is shown: without passwords.
pub fn shown(name: &str) -> String {
    Address::parse(name).map_or_else(|_| "a repository".into(), |address| address.shown())
}

/// The place that is called `name`, with what `variable` says of the environment. Whether there is a repository is not looked at.
pub fn open(
    name: &str,
    options: &Options,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Arc<dyn Storage>> {
    let limits = &options.limits;
    let authorities = options.authorities.clone().or_else(|| variable("RESTIC_CACERT").map(PathBuf::from));
    let authorities = authorities.map_or(Authorities::System, Authorities::In);
    let address = Address::parse(name)?;
    let place = address.shown();
    Ok(match address {
        Address::Local(path) => Arc::new(Folder::new(&path)),
        Address::Rest(address) => {
            let address = with_credentials(address, variable);
            retrying(Rest::new(&address, place, &authorities, Proxy::OfEnvironment, limits)?, limits)
        }
        Address::Rclone(remote) => {
            let (program, args) = (options.extended("rclone.program"), options.extended("rclone.args"));
            retrying(Rclone::start(&remote, program, args, limits)?, limits)
        }
        Address::S3(address) => {
            let keys = Keys::find(variable).map_err(|error| error.path(&place))?;
            let region = options.extended("s3.region").map(str::to_owned);
            let region = region.or_else(|| variable("AWS_DEFAULT_REGION"));
            retrying(S3::new(address, keys, region, &authorities, limits)?, limits)
        }
        Address::Sftp(address) => {
            let (command, args) = (options.extended("sftp.command"), options.extended("sftp.args"));
            retrying(Sftp::new(address, command, args, limits)?, limits)
        }
    })
}

fn retrying<B: backend::Backend + 'static>(backend: B, limits: &Limits) -> Arc<dyn Storage> {
    Arc::new(Retrying::new(backend, limits.clone()))
}

/// What the address does not say is taken from the environment.
fn with_credentials(mut address: HttpAddress, variable: &dyn Fn(&str) -> Option<String>) -> HttpAddress {
    if address.credentials.is_none() {
        let user = variable("RESTIC_REST_USERNAME");
        address.credentials =
            user.map(|user| (user, Secret(variable("RESTIC_REST_PASSWORD").unwrap_or_default())));
    }
    address
}
