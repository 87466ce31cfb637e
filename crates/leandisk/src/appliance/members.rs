//! What the images in an OVA refer to: other members of it, and nothing else.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use appliance::{Archive, Window};
use block::{Error, HostFile, Result};
use image::{Purpose, Resolver};

/// The members of an archive as files.
pub(super) struct Members {
    pub(super) file: Arc<dyn HostFile>,
    pub(super) path: PathBuf,
    pub(super) archive: Archive,
}

impl Resolver for Members {
    fn open(&self, from: &dyn HostFile, name: &str, _purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        let inside = from.path().strip_prefix(&self.path).unwrap_or(Path::new(""));
        let beside = inside.parent().unwrap_or(Path::new("")).join(name);
        let member = beside.to_str().and_then(|name| self.archive.member(name)).ok_or_else(|| {
            Error::refused(format!("refers to '{name}', which is no member of the appliance"))
                .path(from.name())
        })?;
        Ok(Arc::new(Window::new(self.file.clone(), member.span, self.path.join(&member.name))))
    }

    fn siblings(&self, _from: &dyn HostFile) -> Result<Vec<OsString>> {
        Ok(self.archive.members().iter().map(|member| member.name.clone().into()).collect())
    }
}
