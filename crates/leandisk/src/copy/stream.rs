//! Copies to standard output and from standard input.

use std::path::Path;

use block::{Error, Result, TargetFile};
use extent::HostOffset;
use image::{AnyWriter, Format};
use os::{OutputStream, StoredInput};

use super::{Options, Reflink};
use crate::Provision;
use crate::machine::{Machine, Named, ThisHost};

/// `Invalid` for what makes no sense where nothing can be written twice, or read back.
pub(super) fn check(options: &Options) -> Result<()> {
    let wrong = [
        (options.verify, "--verify"),
        (options.resume, "--resume"),
        (options.fast, "--fast"),
        (options.provision != Provision::Thin, "--provision"),
        (options.reflink == Reflink::Always, "--reflink always"),
    ];
    match wrong.iter().find(|(is_wanted, _)| *is_wanted) {
        Some((_, option)) => {
            let what =
                format!("standard output is written once, from start to end: {option} is not possible");
            Err(Error::invalid(what).path("-"))
        }
        None => Ok(()),
    }
}

/// Writes what an image has before its data, if the writer does not do that itself. Answers how many bytes.
pub(super) fn write_head(writer: &AnyWriter, stream: &OutputStream) -> Result<u64> {
    let AnyWriter::Qcow2Stream(writer) = writer else { return Ok(0) };
    let mut at = 0;
    for bytes in writer.head()? {
        stream.write_at(HostOffset::new(at), &bytes)?;
        at += bytes.len() as u64;
    }
    Ok(at)
}

/// What standard input held, kept until this is dropped.
#[derive(Debug)]
pub struct Input {
    _stored: StoredInput,
}

/// Where the source is `-`, reads standard input to its end, and has the options name what it held. To be called before the process is closed in:
/// nothing of what is read is looked at here.
///
/// `Invalid` without a format, or with one that is not read so; `Refused` if the target could not be made.
pub fn take_input(options: &mut Options) -> Result<Option<Input>> {
    if options.source.as_os_str() != "-" {
        return Ok(None);
    }
    let invalid =
        |what: &str| Err(Error::invalid(what).path("-").hint("say what it is with -f raw or -f vmdk"));
    match options.open.format {
        Some(Format::Raw | Format::Vmdk) => {}
        None => return invalid("standard input has no name that tells a format, and is not probed"),
        Some(format) => return invalid(&format!("{format} is not read from standard input")),
    }
    if options.resume {
        return Err(Error::invalid("what comes from standard input is not there a second time for --resume"));
    }
    check_target(&options.target, options.force)?;
    let stored = StoredInput::read(&options.target)?;
    options.source = stored.path();
    Ok(Some(Input { _stored: stored }))
}

/// What the copy would be refused for is said before all is read.
fn check_target(target: &Path, force: bool) -> Result<()> {
    match ThisHost.named(target) {
        Named::File if !force => {
            Err(Error::refused("exists already").path(target.display()).hint("--force replaces it"))
        }
        _ => Ok(()),
    }
}
