//! Disks behind NBD servers, named by an address in place of a path.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Error, HostFile, ReadAt, Result, TargetFile};
use extent::{ExtentSet, Host, HostOffset};
use nbd::{Address, ClientTls, Dial, Patience, RemoteDisk, RemoteTarget, TlsAddress, Wanted};

/// Whether a name is meant as an address, well formed or not.
pub(crate) fn is_address(name: &Path) -> bool {
    Address::is_meant(name)
}

/// What a disk is called that is no file: an export by its name, a disk of a running guest by its.
pub(crate) fn disk_name(path: &Path) -> Option<String> {
    if let Some(Ok(address)) = vm::Address::of(path) {
        let disk = address.disk.unwrap_or_else(|| "disk".into());
        return Some(disk.trim_matches('/').replace('/', "-"));
    }
    if !is_address(path) {
        return None;
    }
    let text = path.to_string_lossy();
    let before = text.split('?').next().unwrap_or_default();
    let export = before.rsplit('/').next().filter(|export| !export.is_empty()).unwrap_or("disk");
    Some(export.to_owned())
}

/// The files that TLS to the export at an address reads; none for a path, or an address that is refused later.
pub(crate) fn tls_files(name: &Path) -> Vec<PathBuf> {
    Address::parse(name).ok().flatten().map(|address| address.tls_files()).unwrap_or_default()
}

/// The export at an address, to be read.
pub(crate) fn open(name: &Path) -> Result<RemoteDisk> {
    let (text, dial, wanted) = reach(name)?;
    RemoteDisk::connect(text, dial, wanted, patience(name))
}

/// What the metadata context marks of the export at an address: see [`nbd::dirty`].
pub(crate) fn marked(name: &Path, context: &str) -> Result<ExtentSet<Host>> {
    let (text, dial, wanted) = reach(name)?;
    let wanted = Wanted { context: Some(context.to_owned()), ..wanted };
    nbd::dirty(&text, dial, wanted, patience(name))
}

/// A server that is started again may be waited for; but not a QEMU, whose exports went with it.
fn patience(name: &Path) -> Patience {
    let address = Address::parse(name).ok().flatten();
    match address.is_some_and(|address| vm::RunId::parse(&address.export).is_some()) {
        true => Patience { pauses: Vec::new(), ..Patience::default() },
        false => Patience::default(),
    }
}

/// The export at an address, to be written over.
pub(crate) fn open_target(name: &Path) -> Result<RemoteTarget> {
    let (text, dial, wanted) = reach(name)?;
    RemoteTarget::connect(text, dial, wanted, patience(name))
}

/// What was written to an export, read back on the same connections: there may be no others.
pub(crate) struct Written {
    pub(crate) name: String,
    pub(crate) target: Arc<dyn TargetFile>,
}

impl ReadAt<Host> for Written {
    fn len_bytes(&self) -> u64 {
        self.target.len_bytes()
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.target.read_stored(at, buf)
    }
}

impl HostFile for Written {
    fn name(&self) -> &str {
        &self.name
    }

    /// All of it: what a server keeps of it is its own affair.
    fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.len_bytes())
    }
}

/// What it takes to connect to the export at an address.
fn reach(name: &Path) -> Result<(String, Box<dyn Dial>, Wanted)> {
    let address = Address::parse(name)?
        .ok_or_else(|| Error::invalid("is no address of an export").path(name.display()))?;
    let text = name.display().to_string();
    let tls =
        address.tls.as_ref().map(|tls| credentials(tls).map_err(|error| error.path(&text))).transpose()?;
    let wanted = Wanted { export: address.export.clone(), tls, ..Wanted::default() };
    let name = name.to_owned();
    Ok((text, Box::new(move || os::connect(&name, &address)), wanted))
}

/// What is in the files that the address names.
fn credentials(tls: &TlsAddress) -> Result<ClientTls> {
    let read = |path: &Path| {
        let mut bytes = Vec::new();
        let read = std::io::Read::read_to_end(&mut os::open_input(path)?, &mut bytes);
        read.map_err(|error| Error::io("read", error).path(path.display()))?;
        Ok(bytes)
    };
    let authorities = match (&tls.certificates, tls.verifies_peer) {
        (_, false) => None,
        (Some(folder), true) => Some(read(&folder.join("ca-cert.pem"))?),
        (None, true) => Some(read(nbd::SYSTEM_AUTHORITIES.as_ref()).map_err(|error: Error| {
            error.hint("name a folder with the authority that signed for the server: tls-certificates=DIR")
        })?),
    };
    let own = match &tls.certificates {
        Some(folder) if folder.join("client-cert.pem").exists() => {
            Some((read(&folder.join("client-cert.pem"))?, read(&folder.join("client-key.pem"))?))
        }
        _ => None,
    };
    let own = own.as_ref().map(|(chain, key)| (&chain[..], &key[..]));
    ClientTls::from_pem(&tls.host, authorities.as_deref(), own)
}

/// What a disk in an export refers to is not looked for: a server is no folder.
pub(crate) struct Nowhere;

impl image::Resolver for Nowhere {
    fn open(&self, from: &dyn HostFile, name: &str, _purpose: image::Purpose) -> Result<Arc<dyn HostFile>> {
        let name = name.escape_debug();
        Err(Error::refused(format!("refers to '{name}', which is not looked for beside an export"))
            .path(from.name())
            .hint("have the server serve the whole disk as raw, or name the files themselves"))
    }
}
